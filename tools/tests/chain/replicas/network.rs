//! A network to be cut: a namespace for each host, joined by a bridge in another. Nothing of this machine's own network is touched.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Place;

/// Where `ip netns` keeps them.
const NAMESPACES: &str = "/run/netns";

/// Hosts by their number; gone when dropped.
pub struct Network {
    prefix: String,
    hosts: Vec<u8>,
}

impl Network {
    /// Such a network, or why there is none.
    pub fn new(hosts: &[u8]) -> Result<Self, String> {
        // SAFETY: no memory is touched.
        if unsafe { libc::geteuid() } != 0 {
            return Err("namespaces of networks need root".into());
        }
        run(Command::new("nft").arg("--version"))?;
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut network = Self {
            prefix: format!("flashnet-{}-{count}", std::process::id()),
            hosts: Vec::new(),
        };
        let bridge = network.name(0);
        network.hosts.push(0);
        ip(&["netns", "add", &bridge])?;
        ip(&["-n", &bridge, "link", "add", "bridge", "type", "bridge"])?;
        ip(&["-n", &bridge, "link", "set", "bridge", "up"])?;
        for &host in hosts {
            let name = network.name(host);
            network.hosts.push(host);
            let port = format!("port{host}");
            let address = format!("{}/24", address(host));
            ip(&["netns", "add", &name])?;
            let veth = ["-n", &name, "link", "add", "eth0", "type", "veth"];
            ip(&[&veth[..], &["peer", "name", &port, "netns", &bridge]].concat())?;
            ip(&[
                "-n", &bridge, "link", "set", &port, "master", "bridge", "up",
            ])?;
            ip(&["-n", &name, "address", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
        }
        network.heal();
        Ok(network)
    }

    fn name(&self, host: u8) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// A host.
    pub fn place(&self, host: u8) -> Place {
        let namespace: PathBuf = Path::new(NAMESPACES).join(self.name(host));
        Place::within(address(host), namespace).unwrap()
    }

    /// Nothing from one host arrives at the other.
    pub fn cut_way(&self, from: u8, to: u8) {
        let rule = format!("add rule inet cut in ip saddr {} drop\n", address(from));
        self.filter(to, &rule);
    }

    /// Nothing passes between two hosts.
    pub fn cut(&self, a: u8, b: u8) {
        self.cut_way(a, b);
        self.cut_way(b, a);
    }

    /// Nothing passes between a host and all others.
    pub fn isolate(&self, host: u8) {
        let rules =
            "add rule inet cut in iifname eth0 drop\nadd rule inet cut out oifname eth0 drop\n";
        self.filter(host, rules);
    }

    /// Everything passes.
    pub fn heal(&self) {
        for &host in self.hosts.iter().filter(|host| **host != 0) {
            // Whether it is there or not.
            let table = "add table inet cut\ndelete table inet cut\nadd table inet cut\n";
            let chains = "add chain inet cut in { type filter hook input priority 0; }\nadd chain inet cut out { type filter hook output priority 0; }\n";
            self.filter(host, &format!("{table}{chains}"));
        }
    }

    fn filter(&self, host: u8, rules: &str) {
        let mut nft = (self.place(host).command("nft").args(["-f", "-"]))
            .stdin(Stdio::piped())
            .spawn()
            .expect("nft starts");
        let mut input = nft.stdin.take().expect("it is piped");
        input.write_all(rules.as_bytes()).unwrap();
        drop(input);
        assert!(nft.wait().unwrap().success(), "{rules}");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in &self.hosts {
            let name = self.name(*host);
            if fs::exists(Path::new(NAMESPACES).join(&name)).unwrap_or(true) {
                let _ = ip(&["netns", "delete", &name]);
            }
        }
    }
}

fn address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host)
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    run(Command::new("ip").args(arguments))
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Err(format!("{command:?}: {error} (Debian: iproute2, nftables)")),
    }
}
