//! `coppice logs`: what a machine wrote.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::process::ExitCode;

use super::dir::Place;
use crate::cli::LogsArgs;
use crate::error::Error;

/// Shows a machine's console, or what its VMM wrote.
pub fn logs(args: LogsArgs) -> ExitCode {
    match attempt(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("coppice: {error}");
            error.exit_code().into()
        }
    }
}

fn attempt(args: &LogsArgs) -> Result<(), Error> {
    let (paths, _) = Place::open()?.find(&args.name)?;
    let logs = paths.logs();
    let path = match args.vmm {
        true => logs.vmm,
        false => logs.console,
    };
    let unusable = |source| Error::File {
        what: "log",
        path: path.clone(),
        source,
    };
    let file = File::open(&path).map_err(unusable)?;
    match show(file) {
        // A reader that wants no more of it is not worth a message.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        shown => shown.map_err(unusable),
    }
}

fn show(mut file: File) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if !stdout.is_terminal() {
        return io::copy(&mut file, &mut stdout).map(drop);
    }
    let mut chunk = [0; 8192];
    loop {
        let len = file.read(&mut chunk)?;
        if len == 0 {
            return stdout.flush();
        }
        // A guest must not steer the terminal.
        let shown: Vec<u8> = chunk[..len].iter().copied().filter(is_harmless).collect();
        stdout.write_all(&shown)?;
    }
}

fn is_harmless(byte: &u8) -> bool {
    matches!(byte, b'\n' | b'\t') || (b' '..0x7f).contains(byte)
}
