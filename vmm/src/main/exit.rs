//! The codes with which the process ends.

use std::process::ExitCode;

/// Why the process ends. The numbers are part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The guest reset or powered off, or SIGTERM, SIGINT or SIGHUP asked for
    /// the end.
    Orderly,
    /// The host could not give what the machine needs.
    HostTrouble,
    /// The guest's kernel panicked.
    GuestPanic,
    /// A vCPU could not go on.
    VcpuFailed,
    /// The configuration file, or what it names, was refused.
    BadConfiguration,
    /// The command line was refused.
    BadArguments,
}

/// Every code with its meaning, as `--help` shows it.
pub const EXITS: &[(Exit, u8, &str)] = &[
    (
        Exit::Orderly,
        0,
        "the guest reset or powered off, or SIGTERM, SIGINT or SIGHUP came",
    ),
    (
        Exit::HostTrouble,
        1,
        "no usable KVM, too little memory, the API socket or log cannot be made",
    ),
    (Exit::GuestPanic, 3, "the guest's kernel panicked"),
    (
        Exit::VcpuFailed,
        4,
        "a vCPU failed: the guest did what KVM cannot continue",
    ),
    (
        Exit::BadConfiguration,
        152,
        "the configuration file, or a file it names, was refused",
    ),
    (Exit::BadArguments, 153, "the command line was refused"),
];

impl Exit {
    /// The code.
    pub fn code(self) -> u8 {
        let known = EXITS.iter().find(|(other, _, _)| *other == self);
        known.map_or(1, |(_, code, _)| *code)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
