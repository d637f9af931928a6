#!/bin/sh
# Shows what Coppice is for: real programs, each in a machine of its own, with
# their output and exit codes as they come. Runs where guests can run:
#
#   ./dev host -- host/demo.sh
#
# Exit code 0 only if every step did what it says.
set -eu
export LC_ALL=C
image=${COPPICE_DEMO_IMAGE:-base}

fail() {
    printf '\ndemo: FAILED: %s\n' "$*" >&2
    exit 1
}

command -v coppice >/dev/null || fail "coppice is not in PATH; run: ./dev host -- host/demo.sh"
work=$(mktemp -d "${TMPDIR:-/tmp}/coppice-demo.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
: >"$work/table"

# --- How a step is run and judged ------------------------------------------------

# heading TITLE COMMAND: what comes next, and how a person would type it.
heading() { printf '\n=== %s\n$ coppice run %s\n\n' "$1" "$2"; }

# step TITLE EXPECTED COMMAND...: boots a machine, runs COMMAND in it with this
# standard input, and shows what it wrote, which is then in $work/out. Ends the
# demo unless `coppice run` returns the exit code EXPECTED. With $keep set, the
# command's standard output goes to that file instead.
keep=
step() {
    title=$1 expected=$2
    shift 2
    rm -f "$work/report" "$work/code"
    {
        code=0
        if [ -n "$keep" ]; then
            machine "$@" 2>&1 >"$keep" || code=$?
        else
            machine "$@" 2>&1 || code=$?
        fi
        echo "$code" >"$work/code"
    } | tee "$work/out"
    read -r code <"$work/code"
    printf '\n[exit code of coppice run: %s]\n' "$code"
    printf '%s\t%s\t%s\t%s\t%s\n' "$title" "$(time_of boot)" "$(time_of exec)" \
        "$(time_of total)" "$code" >>"$work/table"
    [ "$code" = "$expected" ] || fail "$title: exit code $code instead of $expected"
}

machine() { coppice run -i --image "$image" --json="$work/report" -- "$@"; }

# time_of NAME: milliseconds of one part of the last run, from its report.
time_of() { sed -n "s/.*\"$1\":\\([0-9.]*\\).*/\\1/p" "$work/report" 2>/dev/null || :; }

# expect PATTERN: a line that the last step has to have shown.
expect() { grep -q -e "$1" "$work/out" || fail "no line of the output matches: $1"; }

# --- A kernel of its own ---------------------------------------------------------

heading "A kernel of its own" "-- uname -a"
printf 'here:             %s\nin the machine:   ' "$(uname -a)"
step "uname -a" 0 uname -a </dev/null
expect '^Linux '
[ "$(cat "$work/out")" != "$(uname -a)" ] || fail "the machine's kernel is the one here"

# --- A program -------------------------------------------------------------------

heading "A Python program" "-i -- python3 - <primes.py"
cat >"$work/primes.py" <<'END'
import os, platform

limit = 100_000
sieve = bytearray([1]) * limit
sieve[:2] = b"\0\0"
for n in range(2, int(limit**0.5) + 1):
    if sieve[n]:
        sieve[n * n :: n] = bytes(len(range(n * n, limit, n)))
print(f"Python {platform.python_version()}, process {os.getpid()} of {platform.node()}")
print(f"{sum(sieve)} primes below {limit}")
END
step "Python program" 0 python3 - <"$work/primes.py"
expect '^9592 primes below 100000$'

# --- A repository whose test fails, and its repair ---------------------------------

# Each machine ends with its command, so the repository travels as a git bundle:
# out on one command's standard output, in on the next one's standard input.

heading "Making a git repository" "-i -- sh -s <make.sh >bundle"
cat >"$work/make.sh" <<'END'
set -eu
git config --global user.name Demo
git config --global user.email demo@example.org
git init -q -b main median
cd median
cat >median.py <<'PY'
def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
PY
cat >test_median.py <<'PY'
import unittest

from median import median


class MedianTest(unittest.TestCase):
    def test_odd_count(self):
        self.assertEqual(median([3, 1, 2]), 2)

    def test_even_count(self):
        self.assertEqual(median([4, 1, 3, 2]), 2.5)
PY
git add .
git commit -q -m "Median of a list"
git log --stat --format='%h %an: %s' >&2
git bundle create -q - main
END
keep=$work/bundle
step "make repository" 0 sh -s <"$work/make.sh"
keep=
expect 'Demo: Median of a list'

# What both of the next two steps begin with: the bundle becomes a work tree.
checkout='cat >/tmp/bundle && git clone -q -b main /tmp/bundle median && cd median'

heading "Its tests: one fails" "-i -- sh -c 'git clone ...; python3 -m unittest -v' <bundle"
step "failing tests" 1 sh -c "$checkout && exec python3 -m unittest -v" <"$work/bundle"
expect '^AssertionError: 3 != 2.5$'
expect '^FAILED (failures=1)$'

heading "The repair, and the tests again" \
    "-i -- sh -c 'git clone ...; git commit ...; python3 -m unittest -v' <bundle"
repair=$(
    cat <<'END'
set -e
git config --global user.name Demo
git config --global user.email demo@example.org
cat >median.py <<'PY'
def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
PY
git commit -q -a -m "Median of an even count: the mean of the middle two"
git show --format='%h %an: %s' --unified=1
exec python3 -m unittest -v
END
)
step "repair, passing tests" 0 sh -c "$checkout
$repair" <"$work/bundle"
expect '^Ran 2 tests in'
expect '^OK$'

# --- One machine becomes three -----------------------------------------------------

# From here on a machine stays: what is prepared in it, forks have, too.
stays='' parent=demo-$$
trap 'coppice stop --force $stays 2>/dev/null || :; rm -rf "$work"' EXIT

heading_of() { printf '\n=== %s\n$ %s\n\n' "$1" "$2"; }

heading_of "A prepared machine: repository, dependencies, warm caches" \
    "coppice start demo; coppice exec -i demo -- sh -s <prepare.sh"
stays=$parent
coppice start --image "$image" "$parent" >"$work/out" || fail "$(cat "$work/out")"
cat >"$work/prepare.sh" <<'END'
set -e
cat >/tmp/bundle
git clone -q -b main /tmp/bundle /root/median
cd /root/median
# A dependency, which the repairs import; compiled, as are the modules of the tests.
python3 - <<'PY'
import compileall, os, site
os.makedirs(site.getusersitepackages())
with open(site.getusersitepackages() + "/ordering.py", "w") as module:
    module.write("def ordered(values):\n    return sorted(values)\n")
compileall.compile_dir(site.getusersitepackages(), quiet=1)
PY
python3 -m unittest -q >/dev/null 2>&1 || echo "$(git rev-parse --short HEAD): the tests have run once, and one fails"
END
coppice exec -i "$parent" -- sh -c "$(cat "$work/prepare.sh")" <"$work/bundle" | tee "$work/out"
expect 'one fails'

heading_of "Three forks, three repairs, the tests in each of them at once" \
    "coppice fork demo -n 3 -- sh -c 'apply repair \$COPPICE_FORK; python3 -m unittest'"
work_of_forks=$(
    cat <<'END'
exec 2>&1
cd /root/median || exit 9
case $COPPICE_FORK in
1) what="the lower of the middle two" value='values[middle - 1]' ;;
2) what="the mean of the middle two" value='(values[middle - 1] + values[middle]) / 2' ;;
3) what="the mean, rounded down" value='(values[middle - 1] + values[middle]) // 2' ;;
esac
echo "repair $COPPICE_FORK: $what"
cat >median.py <<PY
from ordering import ordered


def median(values):
    values = ordered(values)
    middle = len(values) // 2
    if len(values) % 2:
        return values[middle]
    return $value
PY
exec python3 -m unittest
END
)
for fork in 1 2 3; do stays="$stays $parent-$fork"; done
code=0
coppice fork "$parent" -n 3 -- sh -c "$work_of_forks" >"$work/out" 2>"$work/forks" || code=$?
grep -e ': repair' -e ': AssertionError' -e ': OK' -e ': FAILED' "$work/out" | sort -s -t : -k 1,1 || :
printf '\n'
cat "$work/forks"
printf '\n[exit code of coppice fork: %s]\n' "$code"
[ "$code" = 1 ] || fail "forks: exit code $code instead of 1: $(cat "$work/out")"
expect "^$parent-1: FAILED (failures=1)"
expect "^$parent-2: OK$"
expect "^$parent-3: FAILED (failures=1)"
grep -q 'are shared' "$work/forks" || fail "nothing is said of memory that is shared"

heading_of "The machine that they grew from is as it was" \
    "coppice exec demo -- sh -c 'git status --short median.py; python3 -m unittest'"
code=0
coppice exec "$parent" -- sh -c 'cd /root/median && git status --short median.py && exec python3 -m unittest -q' \
    >"$work/out" 2>&1 || code=$?
cat "$work/out"
[ "$code" = 1 ] || fail "the parent's tests: exit code $code instead of 1"
expect '^AssertionError: 3 != 2.5$'
coppice ls
# shellcheck disable=SC2086 # a list of names
coppice stop --force $stays
stays=

# --- Times -----------------------------------------------------------------------

printf '\n=== Times, in seconds\n\n'
awk -F '\t' '
    BEGIN { printf "%-23s%19s%10s%10s%11s\n", "", "boot to agent ready", "command", "in all", "exit code" }
    { printf "%-23s%19.2f%10.2f%10.2f%11d\n", $1, $2 / 1000, $3 / 1000, $4 / 1000, $5 }' "$work/table"
[ -z "${COPPICE_BUILD_SECONDS:-}" ] ||
    printf '\nBuilding programs, kernel, and images: %s s\n' "$COPPICE_BUILD_SECONDS"
printf '\nEvery step did what it says.\n'
