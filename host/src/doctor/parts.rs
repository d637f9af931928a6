//! Our own parts: programs, the guest kernel, images.

use std::path::Path;

use super::Check;
use crate::error::Error;
use crate::initrd;
use crate::locate::{AGENT, Places, Program, VMM};
use crate::rundir::RunDir;

/// The images that the build makes.
const IMAGES: [&str; 2] = ["minimal", "base"];

/// All of them.
pub fn checks(places: &Places) -> Vec<Check> {
    let mut checks = vec![
        program(places, "vmm", VMM, |_| Ok(())),
        program(places, "agent", AGENT, initrd::check_agent),
        kernel(places),
    ];
    checks.extend(IMAGES.map(|name| image(places, name)));
    checks.push(run_dir());
    checks
}

fn program(
    places: &Places,
    id: &'static str,
    program: Program,
    check: impl FnOnce(&Path) -> Result<(), Error>,
) -> Check {
    let found = places.program(program);
    match found.and_then(|file| check(&file).map(|()| file)) {
        Ok(file) => Check::ok(id, format!("{} is {}.", program.name, file.display())),
        Err(error) => from_error(id, &error),
    }
}

fn kernel(places: &Places) -> Check {
    const ID: &str = "guest-kernel";
    match places.kernel(None) {
        Ok(file) => Check::ok(ID, format!("The guest kernel is {}.", file.display())),
        Err(error) => from_error(ID, &error),
    }
}

/// One can run other images than ours, so a missing one is no failure.
fn image(places: &Places, name: &'static str) -> Check {
    const ID: &str = "image";
    match places.image(name.as_ref()) {
        Ok(file) => Check::ok(ID, format!("The image `{name}` is {}.", file.display())),
        Err(error) => {
            let Check { text, remedy, .. } = from_error(ID, &error);
            Check::warn(ID, text, remedy)
        }
    }
}

fn run_dir() -> Check {
    const ID: &str = "run-directory";
    match RunDir::create() {
        Ok(_) => Check::ok(ID, "A machine's private directory can be made."),
        Err(error) => from_error(ID, &error),
    }
}

/// An error's sentence already ends with what to do.
fn from_error(id: &'static str, error: &Error) -> Check {
    let text = error.to_string();
    let (fact, remedy) = text.split_once("; ").unwrap_or((&text, ""));
    Check::fail(
        id,
        sentence(fact),
        if remedy.is_empty() {
            String::new()
        } else {
            sentence(remedy)
        },
    )
}

fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), chars.as_str())
}
