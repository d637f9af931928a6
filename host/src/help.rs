//! What `--help` shows behind the options: examples, exit codes.

pub const RUN_HELP: &str = "\
Examples:
  coppice run -- uname -a
  coppice run --image minimal --memory 128M -- cat /proc/meminfo
  coppice run -i -- python3 - < program.py
  coppice run -it -- bash
  coppice run --shell -- 'echo $HOME | tr a-z A-Z'
  coppice run --timeout 30s --json=result.json -- make -C /src test

CMD is executed as it stands; for pipes, variables and the like use --shell or
`sh -c`. Standard output and standard error stay separate streams.

Exit code:
  that of CMD; 128+N if signal N killed it; 124 if its time was up; 126 if it
  cannot be executed; 127 if it does not exist; 125 if coppice or the machine
  failed, with the reason on standard error.

The first SIGINT, SIGTERM, SIGHUP or SIGQUIT is passed on to CMD. A second one,
or a CMD that has not ended five seconds later, ends the machine.";

pub const CONSOLE_HELP: &str = "\
Examples:
  coppice console
  coppice console --image minimal --boot-args initcall_debug

The kernel's messages appear as it boots, then a root shell runs on the machine's
serial port. Type Ctrl-] to leave: that switches the machine off. It also ends
when the shell does.";

pub const DOCTOR_HELP: &str = "\
Examples:
  coppice doctor
  coppice doctor --json | jq '.checks[] | select(.status == \"fail\")'

Exit code: 0 if machines can run here, 1 if something is in the way.";

pub const START_HELP: &str = "\
Examples:
  coppice start web
  coppice start build-1 --image base --vcpus 2 --memory 1G
  coppice start web --json | jq -r .files.api_socket

The machine is up when this returns: its agent has answered. It stays until
`coppice stop` or until its guest powers off; until then go on with
`coppice exec NAME -- CMD`. If this command is ended before that, whichever way,
the machine ends with it.

What a machine wrote to its serial console can be read with `coppice logs`, also
after its end, until `coppice stop NAME` or the next `coppice start`.";

pub const EXEC_HELP: &str = "\
Examples:
  coppice exec web -- uname -a
  coppice exec -it web -- bash
  coppice exec --cwd /src --timeout 5m build-1 -- make test
  tar c . | coppice exec -i web -- tar x -C /src

Options, streams, signals and exit codes are those of `coppice run`. What the
command leaves in the machine is there for the next one. The machine stays, also
if the command is given up after a second signal.";

pub const LS_HELP: &str = "\
Examples:
  coppice ls
  coppice ls --json | jq -r '.[] | select(.state == \"dead\") | .name'

States: starting; running; paused; silent if the VMM does not answer; dead if the
VMM has ended by itself. `coppice logs` shows the last words of dead machines;
`coppice stop NAME` and the next `coppice start` clear them away. FROM is the machine
or the kept snapshot that one grew from.";

pub const LOGS_HELP: &str = "\
Examples:
  coppice logs web
  coppice logs --vmm web

On a terminal, control characters are left out.";

pub const STOP_HELP: &str = "\
Examples:
  coppice stop web
  coppice stop --force build-1 build-2

The guest is asked to end everything, write everything to disk and switch off. If
that takes longer than the time limit, the VMM is ended, at last by force. In any
case the machine is gone, with its directory, when this returns.";

pub const RESTORE_HELP: &str = "\
Examples:
  coppice restore base web
  coppice restore 3f2a91 web -- uptime
  coppice restore ./vm.snap web
  coppice restore base web --json | jq -r .files.api_socket

The machine goes on where the snapshot was made, with random numbers, clock, host
name, machine-id and SSH host keys of its own. Nothing runs in it before it has
confirmed that; if it does not, it is ended. One snapshot can be restored any number
of times; the machines share the memory that they have not changed.

Exit code: that of CMD, as with `coppice exec`; 125 if there is no machine.";

pub const FORK_HELP: &str = "\
Examples:
  coppice fork web
  coppice fork web -n 3 --prefix try
  coppice fork web -n 3 --rm -- sh -c 'git apply /fixes/$COPPICE_FORK && make test'
  coppice fork web -n 20 --json | jq .pause_ms

The machine is frozen while it runs, and runs on; it is paused only for as long as
one fork(2) of its process takes. The forks share all memory that they do not
change, and are machines like any other: `coppice ls` shows them, `coppice stop`
ends them, they can be forked themselves. Each has random numbers, clock, host name,
machine-id and SSH host keys of its own before anything runs in it.

CMD runs in all of them at the same time, with their number from 1 on in
COPPICE_FORK. Each line of its output begins with the fork's name.

READY is when a fork could run commands, FIRST OUTPUT when CMD first wrote
something, both from the beginning of this command on. RSS is the memory that a
fork sees, PSS the same with shared pages divided among those who share them.

Exit code: 0 if all went well; 125 if a fork did not come up; else that of the first
CMD that failed.";
