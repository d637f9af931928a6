//! What is compiled for a run: the guests and the floor program.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use coppice_benches::Fallible;

const FLOOR: &str = include_str!("../../floor/floor.c");
const GUEST: &str = include_str!("../../guest/restore.S");

/// Where the guest's pages begin; the same in `restore.S`.
const DATA: u64 = 16 << 20;

/// What a guest does with its memory.
pub struct Shape {
    /// Pages that it touches when it starts.
    pub touch: u64,
    /// Pages that it writes to before each mark.
    pub window: u64,
    /// How far those are apart, in pages.
    pub stride: u64,
    /// How many pages from the first on it writes to before it begins again.
    pub range: u64,
}

/// Touches 16 MiB and then only marks.
pub const QUIET: Shape = Shape {
    touch: 4096,
    window: 0,
    stride: 1,
    range: 4096,
};

/// A guest, compiled.
pub struct Guest {
    /// For a VMM.
    pub elf: PathBuf,
    /// For the floor program.
    pub flat: PathBuf,
}

/// Compiles a guest of this `shape` into the current directory.
pub fn guest(name: &str, shape: &Shape) -> Fallible<Guest> {
    let source = PathBuf::from(format!("{name}.S"));
    std::fs::write(&source, GUEST)?;
    let guest = Guest {
        elf: format!("{name}.elf").into(),
        flat: format!("{name}.bin").into(),
    };
    let settings = [
        ("TOUCH", shape.touch),
        ("WINDOW", shape.window),
        ("STRIDE", shape.stride * 4096),
        ("END", DATA + shape.range * 4096),
        // So short a pause that it does not matter where in it a guest is frozen.
        ("PAUSES", 50),
    ];
    let compile = |target: &Path, format: &[&str]| {
        let mut cc = Command::new("cc");
        cc.args(["-nostdlib", "-static", "-Wl,--build-id=none"]);
        cc.arg("-Wl,-Ttext=0x200000").args(format);
        cc.args(settings.map(|(name, value)| format!("-D{name}={value}")));
        succeed(cc.arg("-o").arg(target).arg(&source))
    };
    compile(&guest.elf, &[])?;
    compile(&guest.flat, &["-Wl,--oformat=binary"])?;
    Ok(guest)
}

/// Compiles the floor program into the current directory.
pub fn floor() -> Fallible<PathBuf> {
    std::fs::write("floor.c", FLOOR)?;
    let mut cc = Command::new("cc");
    succeed(cc.args(["-O2", "-Wall", "-o", "floor", "floor.c"]))?;
    Ok(std::path::absolute("floor")?)
}

/// Runs `command` to its end.
pub fn succeed(command: &mut Command) -> Fallible<()> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?} could not be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} failed: {said}").into())
}

/// A plain process that forks when it is told to. Dropping it ends it.
pub struct ForkFloor {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl ForkFloor {
    /// Starts one that has touched `mib` MiB of memory by the time it forks.
    pub fn start(floor: &Path, mib: u64) -> Fallible<Self> {
        let mut command = Command::new(floor);
        command.arg("fork").arg(mib.to_string());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().ok_or("it has no input")?;
        let output = child.stdout.take().ok_or("it has no output")?;
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    /// How long one fork takes, in milliseconds.
    pub fn fork(&mut self) -> Fallible<f64> {
        self.input.write_all(b"f")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let microseconds: f64 = line.trim().parse()?;
        Ok(microseconds / 1000.0)
    }
}

impl Drop for ForkFloor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
