//! What a package has beside the program: manual pages of every command and name, and completion that a shell understands.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::common::{FLASHNET, bad, good};
use clap::CommandFactory;
use tempfile::tempdir;
use tools::called::LINKS;
use tools::cli::Cli;

/// The names of all commands that are shown, like `flashnet-chain-serve`.
fn commands(of: &clap::Command, name: &str, all: &mut BTreeSet<String>) {
    all.insert(name.to_owned());
    for below in of.get_subcommands().filter(|below| !below.is_hide_set()) {
        commands(below, &format!("{name}-{}", below.get_name()), all);
    }
}

#[test]
fn manual_pages() {
    let directory = tempdir().unwrap();
    let at = directory.path().join("share/man");
    // Twice: pages of an older version are replaced.
    for _ in 0..2 {
        good(&["man", at.to_str().unwrap()]);
    }
    let names = |section: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(at.join(section)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    };
    let mut all = BTreeSet::new();
    commands(&Cli::command(), "flashnet", &mut all);
    assert!(all.contains("flashnet-chain-serve") && !all.contains("flashnet-perf-server"));
    let pages: BTreeSet<String> = all.iter().map(|name| format!("{name}.1")).collect();
    assert_eq!(names("man1"), pages);
    for name in &all {
        let text = fs::read_to_string(at.join(format!("man1/{name}.1"))).unwrap();
        let title = format!("\n.TH {name} 1 ");
        assert!(text.contains(&title), "{name}: {text}");
        for line in [".SH NAME", ".SH DESCRIPTION", ".SH OPTIONS"] {
            assert!(text.lines().any(|found| found == line), "{name}: {text}");
        }
    }
    // Names that the program is called by lead to the pages of their commands.
    assert_eq!(names("man8").len(), LINKS.len());
    for (name, _) in LINKS {
        let text = fs::read_to_string(at.join(format!("man8/{name}.8"))).unwrap();
        let leads = text.strip_prefix(".so ").unwrap().trim_end();
        assert!(at.join(leads).is_file(), "{name}: {text}");
    }
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let said = bad(&["man", file.to_str().unwrap()]);
    assert!(said.contains("cannot make"), "{said}");
}

/// bash completes commands, options and values; what is hidden is not offered.
#[test]
fn completion() {
    let complete = |words: &str| {
        let script = format!(
            "source <({FLASHNET:?} completion bash) && COMP_WORDS=({words}) && COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) \
             && _flashnet flashnet \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\" && echo \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash").args(["-c", &script]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{words}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.trim_end().to_owned()
    };
    assert_eq!(complete("flashnet ser"), "serve");
    assert_eq!(complete("flashnet mkfs --pre"), "--prefill");
    assert_eq!(complete("flashnet chain ben"), "bench");
    assert_eq!(complete("flashnet perf-"), "");
    let shells = ["zsh", "fish", "elvish", "powershell"];
    for shell in shells {
        let text = good(&["completion", shell]);
        assert!(text.contains("snapshot"), "{shell}");
    }
}
