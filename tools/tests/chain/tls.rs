//! A replication group by TLS as an operator has it: options, processes, and what they say when they do not go together.

use std::fs;
use std::path::Path;

use crate::authority::{Authority, Issued};
use crate::replicas::{Group, until};

/// Files for members at any address: all have one certificate, for one name.
struct Files {
    _dir: tempfile::TempDir,
    ca: String,
    member: [String; 2],
    client: [String; 2],
    client_ca: String,
    foreign: [String; 2],
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn pair(issued: &Issued) -> [String; 2] {
    [text(&issued.certificate), text(&issued.key)]
}

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let members = Authority::new(dir.path(), "members");
        let clients = Authority::new(dir.path(), "clients");
        let others = Authority::new(dir.path(), "others");
        Self {
            ca: text(members.path()),
            member: pair(&members.issue("member", &["log.example"])),
            client: pair(&clients.issue("client", &["someone"])),
            client_ca: text(clients.path()),
            foreign: pair(&others.issue("foreign", &["log.example"])),
            _dir: dir,
        }
    }

    fn of_member<'a>(&'a self, [certificate, key]: &'a [String; 2]) -> Vec<&'a str> {
        let own = ["--tls-cert", certificate, "--tls-key", key];
        let others = ["--tls-ca", &self.ca, "--tls-name", "log.example"];
        [own, others].concat()
    }

    fn of_client(&self) -> Vec<&str> {
        let members = ["--tls", "--tls-ca", &self.ca, "--tls-name", "log.example"];
        let [certificate, key] = &self.client;
        [&members[..], &["--tls-cert", certificate, "--tls-key", key]].concat()
    }
}

/// I12-I15 by TLS, with certificates of clients asked for: members die under load and come back, one without its memory, and nothing that was
/// acknowledged is lost.
#[test]
fn members_die_and_return() {
    let files = Files::new();
    let mut group = Group::local();
    group.create("1,2,3", &[]);
    let mut options = files.of_member(&files.member);
    options.extend(["--tls-client-ca", &files.client_ca]);
    let start = |group: &mut Group, id: u32| {
        let memory = group.memory(id);
        group.start_with(id, Some(&memory), &options);
    };
    for id in 1..=3 {
        start(&mut group, id);
    }
    group.serves(&[1, 2, 3], "the start");
    let mut load = group.load(&files.of_client());
    for round in 0..2 {
        let chain = group.serves(&[1, 2, 3], "the round before").chain();
        let victim = chain[round];
        group.kill(victim);
        load.goes_on("a death");
        if round == 1 {
            fs::remove_file(group.memory(victim)).unwrap();
        }
        start(&mut group, victim);
        group.serves(&[1, 2, 3], "its return");
        load.goes_on("its return");
    }
    load.finish();
    group.verify_with(3, &files.of_client());
}

/// What does not go together is said: by the command, and in the log of a member.
#[test]
fn what_does_not_go_together_is_said() {
    let files = Files::new();
    let mut group = Group::local();
    group.create("1,2", &[]);
    let own = files.of_member(&files.member);
    let log_says = |group: &Group, id: u32, words: &str| {
        let log = || fs::read_to_string(group.log_of(id)).unwrap();
        let found = until(|| log().contains(words).then_some(()));
        assert!(found.is_some(), "{words}: {}", log());
    };
    let says = |said: &str, words: &str| assert!(said.contains(words), "{said}");

    let memory = group.memory(1);
    let serve = [
        "serve",
        "--member",
        "1",
        "--memory",
        memory.to_str().unwrap(),
    ];
    let [certificate, key] = &files.member;
    let pair = ["--tls-cert", certificate, "--tls-key", key];
    let wrong = [&serve[..], &pair, &["--tls-ca", "/nothing"]].concat();
    says(&group.bad(&wrong), "cannot read");
    let strange = [&serve[..], &own, &["--advertise", "no host:7"]].concat();
    let nameless: Vec<&str> = strange
        .into_iter()
        .filter(|word| !["--tls-name", "log.example"].contains(word))
        .collect();
    says(&group.bad(&nameless), "no name of a host");

    // One with TLS, and one without.
    let start = |group: &mut Group, id: u32, options: &[&str]| {
        let memory = group.memory(id);
        group.start_with(id, Some(&memory), options);
    };
    start(&mut group, 1, &own);
    start(&mut group, 2, &[]);
    log_says(&group, 1, "speaks without TLS");
    log_says(&group, 1, "does not speak TLS");
    log_says(&group, 2, "wants TLS, and this member serves without");
    log_says(&group, 2, "speaks TLS, and this member serves without");
    group.kill(2);

    // And one that another CA has signed.
    start(&mut group, 2, &files.of_member(&files.foreign));
    log_says(&group, 1, "not signed by a CA that is trusted");
    log_says(&group, 2, "will hardly take this one's certificate");
    group.kill(2);

    // Clients.
    start(&mut group, 2, &own);
    group.serves(&[1, 2], "all have TLS");
    says(&group.bad(&["verify"]), "want TLS (--tls");
    let unknown = ["verify", "--tls", "--tls-ca", &files.client_ca];
    says(&group.bad(&unknown), "--tls-ca names");
    let elsewhere = ["verify", "--tls", "--tls-ca", &files.ca];
    says(&group.bad(&elsewhere), "--tls-name says");
    group.verify_with(2, &files.of_client());
}
