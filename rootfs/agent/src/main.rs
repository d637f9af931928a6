//! The guest agent: process 1 of a machine, or a service under another init.
//!
//! One thread, one event loop ([`server`]). A stream from the host is a
//! [`session`] with one request; a command that runs is an [`exec`]. As process
//! 1 the agent first makes the machine one in which programs can live
//! ([`init`]), and in the end switches it off.

#![cfg_attr(not(test), no_main)]

use std::io;
use std::path::{Path, PathBuf};

use coppice_agent_protocol::{AGENT_PORT, AgentHello, BootTimes, PROTOCOL_VERSION};

use crate::listen::Address;
use crate::server::{End, Server};
use crate::signals::Signals;

mod backlog;
mod cgroup;
mod child;
mod env;
mod environment;
mod exec;
mod info;
mod init;
mod input;
mod link;
mod listen;
mod poll;
mod renew;
mod server;
mod session;
mod signals;
mod slab;
mod spawn;
mod sys;
mod user;

const USAGE: &str = "\
usage: coppice-agent serve [--vsock PORT | --unix PATH] [--root DIR]
       coppice-agent --version
As process 1 it takes no arguments: it is then the machine's init.";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Mode {
    /// Where to listen, and where the guest's files are.
    Serve(Address, PathBuf),
    Version,
    Help,
}

/// The program's entry, as the C library calls it.
///
/// Rust's own would abort the process if a standard stream is closed and
/// `/dev/null` is missing, which is how a kernel without a console starts
/// process 1; and an abort of process 1 is a panic of the machine.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main(
    _argc: std::ffi::c_int,
    _argv: *const *const std::ffi::c_char,
) -> std::ffi::c_int {
    run()
}

fn run() -> i32 {
    let started_us = info::uptime_us();
    let is_init = std::process::id() == 1;
    init::open_standard_streams(is_init);
    if is_init {
        // The kernel passes words of its command line on as arguments: they
        // are not for the agent.
        init::run(started_us);
    }
    let mode = match parse(lexopt::Parser::from_env()) {
        Ok(mode) => mode,
        Err(error) => {
            eprintln!("coppice-agent: {error}\n{USAGE}");
            return 2;
        }
    };
    let result = match mode {
        Mode::Serve(address, root) => serve(&address, &root, started_us),
        Mode::Version => {
            println!(
                "coppice-agent {} (protocol {PROTOCOL_VERSION})",
                env!("CARGO_PKG_VERSION")
            );
            return 0;
        }
        Mode::Help => {
            println!("{USAGE}");
            return 0;
        }
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("coppice-agent: {error}");
            1
        }
    }
}

fn serve(address: &Address, root: &Path, started_us: u64) -> io::Result<()> {
    let signals = Signals::take()?;
    sys::become_subreaper()?;
    init::spare_from_oom();
    sys::raise_open_files();
    let hello = AgentHello {
        protocol: PROTOCOL_VERSION,
        agent_version: env!("CARGO_PKG_VERSION").into(),
        init: false,
        boot: BootTimes {
            started_us,
            ..BootTimes::default()
        },
    };
    let server = Server::listen(address, root, signals, hello)?;
    eprintln!("coppice-agent: listening on {address}");
    let _: End = server.run()?;
    Ok(())
}

fn parse(mut parser: lexopt::Parser) -> Result<Mode, lexopt::Error> {
    use lexopt::prelude::*;

    let Some(argument) = parser.next()? else {
        return Err("as process 1 the agent is the machine's init; elsewhere say `serve`".into());
    };
    match argument {
        Long("version") | Short('V') => Ok(Mode::Version),
        Long("help") | Short('h') => Ok(Mode::Help),
        Value(word) if word == "serve" => {
            let mut address = Address::Vsock(AGENT_PORT);
            let mut root = PathBuf::from("/");
            while let Some(argument) = parser.next()? {
                match argument {
                    Long("vsock") => address = Address::Vsock(parser.value()?.parse()?),
                    Long("unix") => address = Address::Unix(parser.value()?.into()),
                    Long("root") => root = parser.value()?.into(),
                    other => return Err(other.unexpected()),
                }
            }
            Ok(Mode::Serve(address, root))
        }
        other => Err(other.unexpected()),
    }
}
