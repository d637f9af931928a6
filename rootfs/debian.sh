# shellcheck shell=sh disable=SC2154
# The Debian half of rootfs/build, which sources it: from a list of package
# names to a tar of an installed system.
#
# A mirror moves: the same names mean other versions next week. So the mirror
# is asked once; its answer, the lock, is kept with the packages that it names,
# and is an input like any other file. Only --refresh, or a package that is
# missing from the cache, asks again.

suite=bookworm
arch=amd64
packages=$cache/packages
lock=$packages/base-$(digest "$here/base.packages" </dev/null).lock

# debian_sources: the sources.list lines for the suite, from the mirrors that
# this machine's own APT uses for Debian, or from $COPPICE_DEBIAN_MIRROR.
debian_sources() {
	keyring=/usr/share/keyrings/debian-archive-keyring.gpg
	[ -f "$keyring" ] || die "$keyring is missing: install the Debian package debian-archive-keyring."
	if [ -n "${COPPICE_DEBIAN_MIRROR:-}" ]; then
		echo "deb [signed-by=$keyring] $COPPICE_DEBIAN_MIRROR $suite main"
	else
		apt-get update --print-uris |
			sed -n "s,^'\(.*/debian\(-security\)\{0\,1\}\)/dists/[a-z]*\(-updates\|-security\)\{0\,1\}/InRelease'.*,\1 $suite\3,p" |
			sort -u | sed "s,.*,deb [signed-by=$keyring] & main,"
	fi
}

# debian_apt: apt-get that knows nothing of what this machine has installed.
debian_apt() {
	apt-get -o Dir::State="$work/apt" -o Dir::State::status="$work/apt/status" \
		-o Dir::Etc::SourceList="$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
		-o Dir::Etc::Preferences=/dev/null \
		-o Dir::Etc::PreferencesParts=/dev/null \
		-o Dir::Cache="$work/apt/cache" -o Dir::Cache::Archives="$packages" \
		-o APT::Architecture=$arch -o APT::Install-Recommends=0 \
		-o APT::Sandbox::User=root -o Debug::NoLocking=1 -q -y "$@"
}

# debian_resolve: writes the lock: the sources, the date of their newest
# release, and every package file with its hash; fetches the packages.
debian_resolve() {
	mkdir -p "$work/apt/lists/partial" "$work/apt/cache" "$packages/partial"
	: >"$work/apt/status"
	debian_sources >"$work/apt/sources.list"
	if [ ! -s "$work/apt/sources.list" ]; then
		echo "APT on this machine has no Debian mirror:" \
			"set COPPICE_DEBIAN_MIRROR to the URL of one."
		exit 1
	fi
	debian_apt -o APT::Update::Error-Mode=any update
	# '?essential' and '?priority' are what mmdebstrap's minbase installs.
	set -- '?essential' '?priority(required)' apt
	# shellcheck disable=SC2046 # one argument for each name
	set -- "$@" $(sed 's/#.*//' "$here/base.packages")
	# APT prints what it has yet to fetch: show it an empty cache, to hear of all.
	mkdir -p "$work/apt/none/partial"
	debian_apt -o Dir::Cache::Archives="$work/apt/none" install --print-uris -qq "$@" >"$work/uris"
	debian_apt install --download-only "$@"
	{
		sed 's/^/source /' "$work/apt/sources.list"
		echo "epoch $(sed -n 's/^Date: //p' "$work"/apt/lists/*_InRelease |
			while read -r date; do date -d "$date" +%s; done | sort -n | tail -n 1)"
		cut -d ' ' -f 2 "$work/uris" | sort | (cd "$packages" && xargs sha256sum)
	} >"$work/lock"
	mv "$work/lock" "$lock"
}

# debian_lock: makes sure of a lock, and that what it names is in the cache.
debian_lock() {
	need mmdebstrap mmdebstrap
	[ "$(id -u)" -eq 0 ] || need newuidmap uidmap
	if [ -f "$lock" ] && [ "$refresh" = no ]; then
		[ "$check" = no ] && [ -f "$cache/images/base-$(debian_key).tar" ] && return
		debian_files >"$work/sums"
		(cd "$packages" && sha256sum --status --check "$work/sums" 2>/dev/null) && return
		say "packages are missing from $packages: asking the mirror again"
	fi
	step "resolving and fetching Debian packages" debian_resolve
}

debian_files() { grep -E '^[0-9a-f]{64} ' "$lock"; }
debian_epoch() { sed -n 's/^epoch //p' "$lock"; }
debian_key() { mmdebstrap --version | digest "$here/debian.sh" "$lock"; }

# debian_repository DIR: a local mirror that holds what the lock names and
# nothing else, so that nothing else can be installed.
debian_repository() {
	mkdir -p "$1"
	debian_files | while read -r sum file; do
		cp "$packages/$file" "$1/$file"
		dpkg-deb --field "$1/$file"
		printf 'Filename: %s\nSize: %s\nSHA256: %s\n\n' \
			"$file" "$(stat -c %s "$1/$file")" "$sum"
	done >"$1/Packages"
	cat >"$1/Release" <<-END
	Suite: $suite
	Codename: $suite
	Architectures: $arch
	SHA256:
	 $(sha256sum <"$1/Packages" | cut -d ' ' -f 1) $(stat -c %s "$1/Packages") Packages
	END
}

# debian_install TAR: installs what the lock names and packs the result.
# Documentation, translations and parts of the compiler that few ever call are
# left out: the image is read through hosts that read 12 MB a second.
debian_install() {
	# Not in the cache: without root, mmdebstrap reads it as a stranger, who may
	# not look into a home directory.
	repository=$(mktemp -d)
	trap 'rm -rf "$repository"' EXIT
	debian_repository "$repository"
	sed -n 's/^source deb \[[^]]*\]/deb/p' "$lock" >"$repository/sources.list"
	chmod -R u=rwX,go=rX "$repository"
	names=$(sed -n 's/^Package: //p' "$repository/Packages" | paste -s -d ,)
	# force-unsafe-io: a crash leaves no image at all, so dpkg need not sync each
	# file. It stays in the image, whose machines are as easily made anew.
	# shellcheck disable=SC2016 # the hook's $1 is for mmdebstrap's shell
	# The order of a set decides the bytes of a .pyc file, hence PYTHONHASHSEED;
	# and those that Python writes by the way, while maintainer scripts import
	# modules, are of another kind than those that the scripts compile.
	SOURCE_DATE_EPOCH=$(debian_epoch) PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 mmdebstrap \
		--variant=minbase --architectures=$arch --format=tar --include="$names" \
		--dpkgopt=force-unsafe-io \
		--dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/info/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/lintian/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-include=/usr/share/doc/*/copyright' \
		--dpkgopt='path-exclude=/usr/bin/*lto-dump*' \
		--dpkgopt='path-exclude=/usr/lib/gcc/*/lib?san.a' \
		--customize-hook="upload $repository/sources.list /etc/apt/sources.list" \
		--customize-hook='cd "$1" && rm -rf var/lib/apt/lists/* var/lib/dpkg/*-old etc/*- &&
			find var/log var/cache -type f -delete' \
		$suite "$1" "deb [trusted=yes] copy:$repository ./"
}
