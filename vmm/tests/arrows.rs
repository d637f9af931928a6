//! Who may use whom: the map in `src/lib.rs` is read from its documentation, and
//! every `crate::…` path in the sources has to follow one of its arrows. The
//! borders between crates are read from their manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type Map = BTreeMap<String, BTreeSet<String>>;

fn source_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The map of `lib.rs`: each module and what it may use.
fn map() -> Map {
    let text = read(&source_dir().join("lib.rs"));
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with("//! ```"))
        .skip(1)
        .take_while(|line| !line.starts_with("//! ```"));
    let mut map = Map::new();
    for line in lines {
        let line = line.trim_start_matches("//!").trim();
        let (what, arrows) = line.split_once('→').unwrap_or((line, ""));
        // "exit → outcome" is prose: the arrows come last.
        let arrows = arrows.rsplit('→').next().unwrap_or(arrows);
        let module = words(what).next().expect("a line of the map has a module");
        let targets = if arrows.contains("everything above") {
            map.keys().cloned().collect()
        } else {
            words(arrows).collect()
        };
        map.insert(module, targets);
    }
    assert!(map.len() > 5, "the map in lib.rs was not found");
    map
}

/// The identifiers in `text`.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
}

/// All source files that are not tests, with their paths below `src`.
fn sources() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut tests = BTreeSet::new();
    let mut dirs = vec![source_dir()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("the source directory can be listed") {
            let path = entry.expect("its entries can be read").path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let text = read(&path);
                let (code, test_modules) = without_tests(&text);
                tests.extend(test_modules.iter().map(|name| dir.join(name)));
                files.push((path, code));
            }
        }
    }
    files.retain(|(path, _)| !tests.contains(path));
    files
        .into_iter()
        .map(|(path, code)| {
            let path = path.strip_prefix(source_dir()).expect("it is below src");
            (path.to_owned(), code)
        })
        .collect()
}

/// The code of a file without comments and without what `cfg(test)` governs,
/// and the names of the files that are modules for tests.
fn without_tests(text: &str) -> (String, Vec<String>) {
    let mut code = String::new();
    let mut files = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let for_tests = ["#[cfg(test)]", "#[cfg(any(test,"];
        if !for_tests.iter().any(|cfg| line.trim().starts_with(cfg)) {
            code.push_str(line.split("//").next().unwrap_or(line));
            code.push('\n');
            continue;
        }
        // The item, which may have more attributes, ends in the line that is
        // indented as it is.
        let indent = line.len() - line.trim_start().len();
        let mut path = None;
        for line in lines.by_ref() {
            let item = line.trim();
            if let Some(name) = item.strip_prefix("#[path = \"") {
                path = name.strip_suffix("\"]").map(str::to_owned);
            }
            if item.starts_with("#[") {
                continue;
            }
            if let Some(name) = item.strip_suffix(';').and_then(|l| l.split("mod ").nth(1)) {
                files.push(path.take().unwrap_or_else(|| format!("{name}.rs")));
            }
            let is_last = item.ends_with([';', '}', ',']);
            if is_last && line.len() - line.trim_start().len() == indent {
                break;
            }
        }
    }
    (code, files)
}

/// The modules at the root of the crate that `code` names, which is the file
/// `path` below `src`.
fn used(path: &Path, code: &str) -> BTreeSet<String> {
    let mut depth = path.components().count();
    if path.ends_with("mod.rs") {
        depth -= 1;
    }
    // From a module at depth n, n times `super::` is the root.
    let root_by_super = "super::".repeat(depth);
    let mut used = BTreeSet::new();
    for root in ["crate::", root_by_super.as_str()] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                continue;
            }
            let rest = &code[at + root.len()..];
            match rest.strip_prefix('{') {
                Some(group) => used.extend(first_names(group)),
                None => used.extend(words(rest).next()),
            }
        }
    }
    used.remove("super");
    used
}

/// The first names of the paths in a group of imports, whose opening brace has
/// been read.
fn first_names(group: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut depth = 1;
    let mut name = String::new();
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 || (depth == 1 && c == ',') {
            names.extend(words(&name).next());
            name.clear();
        } else {
            name.push(c);
        }
        if depth == 0 {
            break;
        }
    }
    names
}

#[test]
fn imports_follow_the_map() {
    let map = map();
    let mut wrong = Vec::new();
    for (path, code) in sources() {
        let top = path.components().next().expect("a file has a name");
        let module = Path::new(&top).with_extension("");
        let module = module.to_str().expect("module names are UTF-8");
        if module == "lib" || module == "main" {
            continue;
        }
        let Some(allowed) = map.get(module) else {
            wrong.push(format!(
                "src/{}: {module} is not on the map",
                path.display()
            ));
            continue;
        };
        for target in used(&path, &code) {
            if target != module && !allowed.contains(&target) {
                wrong.push(format!("src/{}: {module} → {target}", path.display()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "the map in src/lib.rs does not have these arrows:\n  {}",
        wrong.join("\n  ")
    );
}

#[test]
fn the_map_has_no_circle_and_names_what_exists() {
    let mut map = map();
    for (module, targets) in &map {
        let file = source_dir().join(module);
        assert!(
            file.is_dir() || file.with_extension("rs").is_file(),
            "{module} is on the map and not in src"
        );
        for target in targets {
            assert!(
                map.contains_key(target),
                "{module} → {target}: no such module"
            );
        }
    }
    while !map.is_empty() {
        let free: Vec<String> = map
            .iter()
            .filter(|(_, targets)| targets.iter().all(|target| !map.contains_key(target)))
            .map(|(module, _)| module.clone())
            .collect();
        assert!(!free.is_empty(), "circle among {:?}", map.keys());
        for module in free {
            map.remove(&module);
        }
    }
}

/// The dependencies of the crate in `dir` of the workspace, or `None` if there is
/// no such crate.
fn dependencies(dir: &str) -> Option<BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let manifest = root.join(dir).join("Cargo.toml");
    let members = read(&root.join("Cargo.toml"));
    if !members.contains(&format!("\"{dir}\"")) {
        assert!(!manifest.exists(), "{dir} is a crate outside the workspace");
        return None;
    }
    let mut names = BTreeSet::new();
    let mut in_dependencies = false;
    for line in read(&manifest).lines() {
        if let Some(section) = line.strip_prefix('[') {
            // [dependencies], [target.….dependencies], [dependencies.NAME]; those
            // of tests may go where they like.
            let section = section.trim_end_matches(']');
            in_dependencies = section.ends_with("dependencies") && !section.contains("dev-");
            if let Some((_, name)) = section.split_once("dependencies.")
                && !section.contains("dev-")
            {
                names.insert(name.to_owned());
            }
        } else if in_dependencies && !line.starts_with('#') {
            names.extend(line.split(['=', '.', ' ']).next().map(str::to_owned));
        }
    }
    names.remove("");
    Some(names)
}

#[test]
fn crates_keep_to_their_side() {
    let no_coppice = |name: &str| name.starts_with("coppice");
    let kvm = |name: &str| name.starts_with("kvm-");
    let vmm = |name: &str| name == "coppice-vmm" || name == "coppice";
    type Rule<'a> = (&'a str, &'a dyn Fn(&str) -> bool, &'a str);
    let rules: [Rule<'_>; 4] = [
        ("snapshot", &vmm, "it must not know the machine"),
        ("jailer", &no_coppice, "it stands alone, to be audited"),
        ("host", &kvm, "it never touches KVM"),
        ("rootfs/agent", &vmm, "the guest does not know the host"),
    ];
    for (crate_dir, forbidden, why) in rules {
        for name in dependencies(crate_dir).unwrap_or_default() {
            assert!(!forbidden(&name), "{crate_dir} depends on {name}: {why}");
        }
    }
}

#[test]
fn the_reader_of_sources_sees_what_it_should() {
    let text = "use crate::a::X; // crate::comment\n\
                use crate::{b, c::{Y, d}};\n\
                #[cfg(test)]\n#[path = \"z_test.rs\"]\npub(crate) mod tests;\n\
                #[cfg(test)]\nmod mock;\n\
                fn f() { super::e::g(); }\n\
                #[cfg(test)]\nmod inline {\n    use crate::hidden;\n}\n";
    let (code, files) = without_tests(text);
    assert_eq!(files, ["z_test.rs", "mock.rs"]);
    let names = |path: &str| -> Vec<String> { used(Path::new(path), &code).into_iter().collect() };
    assert_eq!(names("m.rs"), ["a", "b", "c", "e"]);
    assert_eq!(names("m/mod.rs"), ["a", "b", "c", "e"]);
    assert_eq!(names("m/n.rs"), ["a", "b", "c"], "super is m there");
}

#[test]
fn the_architecture_page_has_the_same_map() {
    let lib = read(&source_dir().join("lib.rs"));
    let map: Vec<&str> = lib
        .lines()
        .skip_while(|line| *line != "//! ```text")
        .take_while(|line| *line != "//! ```")
        .map(|line| line.trim_start_matches("//! "))
        .collect();
    let page = read(&source_dir().join("../../docs/architecture.md"));
    assert!(
        page.contains(&map.join("\n")),
        "the map in docs/architecture.md differs from the one in src/lib.rs"
    );
}
