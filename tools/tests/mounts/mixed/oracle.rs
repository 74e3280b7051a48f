//! A tree as simple as it can be, with the errors of POSIX.

use std::collections::BTreeMap;

use libc::{EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, EPERM};

use super::answer::Attributes;
use super::content::Content;

/// Number of a node; node 0 is the root.
pub type Node = usize;

#[derive(Clone, Debug)]
pub enum Body {
    File(Content),
    Dir(BTreeMap<String, Node>),
}

#[derive(Clone, Debug)]
pub struct Entity {
    pub body: Body,
    /// What the mount calls it, once that is known.
    pub number: Option<u64>,
    /// What messages call it.
    pub id: usize,
}

/// How to rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Replace,
    NoReplace,
    Exchange,
}

/// All that the clients share. Nodes are never removed, only forgotten by names.
#[derive(Debug)]
pub struct Oracle {
    pub nodes: Vec<Entity>,
    made: usize,
    /// Whether a crash may come.
    recording: bool,
    /// Files that became shorter, and how long they were at the shortest; for whoever has regions of them.
    pub shrunk: Vec<(Node, usize)>,
}

impl Default for Oracle {
    fn default() -> Self {
        Self {
            nodes: vec![Entity {
                body: Body::Dir(BTreeMap::new()),
                number: None,
                id: 0,
            }],
            made: 0,
            recording: false,
            shrunk: Vec::new(),
        }
    }
}

impl Oracle {
    pub fn dir(&self, node: Node) -> Result<&BTreeMap<String, Node>, i32> {
        match &self.nodes[node].body {
            Body::Dir(entries) => Ok(entries),
            Body::File(_) => Err(ENOTDIR),
        }
    }

    fn dir_mut(&mut self, node: Node) -> &mut BTreeMap<String, Node> {
        match &mut self.nodes[node].body {
            Body::Dir(entries) => entries,
            Body::File(_) => panic!("checked before"),
        }
    }

    pub fn is_dir(&self, node: Node) -> bool {
        matches!(self.nodes[node].body, Body::Dir(_))
    }

    pub fn content(&self, node: Node) -> &Content {
        match &self.nodes[node].body {
            Body::File(content) => content,
            Body::Dir(_) => panic!("only files are opened"),
        }
    }

    pub fn content_mut(&mut self, node: Node) -> &mut Content {
        match &mut self.nodes[node].body {
            Body::File(content) => content,
            Body::Dir(_) => panic!("only files are opened"),
        }
    }

    pub fn size(&self, node: Node) -> usize {
        self.content(node).bytes.len()
    }

    /// What a path leads to; the empty one to the root.
    pub fn find(&self, path: &str) -> Result<Node, i32> {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        parts.try_fold(0, |node, part| {
            self.dir(node)?.get(part).copied().ok_or(ENOENT)
        })
    }

    /// The directory of a path, and the last name.
    pub fn parent<'p>(&self, path: &'p str) -> Result<(Node, &'p str), i32> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.find(dir)?;
        self.dir(dir)?;
        Ok((dir, name))
    }

    fn add(&mut self, path: &str, body: Body) -> Result<Node, i32> {
        let (dir, name) = self.parent(path)?;
        if self.dir(dir)?.contains_key(name) {
            return Err(EEXIST);
        }
        self.made += 1;
        self.nodes.push(Entity {
            body,
            number: None,
            id: self.made,
        });
        let node = self.nodes.len() - 1;
        self.dir_mut(dir).insert(name.to_owned(), node);
        Ok(node)
    }

    pub fn create(&mut self, path: &str) -> Result<Node, i32> {
        self.add(path, Body::File(Content::recording(self.recording)))
    }

    pub fn make_dir(&mut self, path: &str) -> Result<Node, i32> {
        self.add(path, Body::Dir(BTreeMap::new()))
    }

    pub fn unlink(&mut self, path: &str) -> Result<(), i32> {
        let (dir, name) = self.parent(path)?;
        let node = *self.dir(dir)?.get(name).ok_or(ENOENT)?;
        if self.is_dir(node) {
            return Err(EISDIR);
        }
        self.dir_mut(dir).remove(name);
        Ok(())
    }

    pub fn remove_dir(&mut self, path: &str) -> Result<(), i32> {
        let (dir, name) = self.parent(path)?;
        let node = *self.dir(dir)?.get(name).ok_or(ENOENT)?;
        if !self.dir(node)?.is_empty() {
            return Err(ENOTEMPTY);
        }
        self.dir_mut(dir).remove(name);
        Ok(())
    }

    pub fn link(&mut self, from: &str, to: &str) -> Result<(), i32> {
        let node = self.find(from)?;
        let (dir, name) = self.parent(to)?;
        if self.dir(dir)?.contains_key(name) {
            return Err(EEXIST);
        }
        if self.is_dir(node) {
            return Err(EPERM);
        }
        self.dir_mut(dir).insert(name.to_owned(), node);
        Ok(())
    }

    fn is_below(&self, top: Node, node: Node) -> bool {
        let below = |entries: &BTreeMap<String, Node>| {
            entries.values().any(|&child| self.is_below(child, node))
        };
        top == node || self.dir(top).is_ok_and(below)
    }

    /// In the order in which Linux looks.
    pub fn rename(&mut self, from: &str, to: &str, mode: Mode) -> Result<(), i32> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let node = *self.dir(from_dir)?.get(from_name).ok_or(ENOENT)?;
        let target = self.dir(to_dir)?.get(to_name).copied();
        match (mode, target) {
            (Mode::NoReplace, Some(_)) => return Err(EEXIST),
            (Mode::Exchange, None) => return Err(ENOENT),
            _ => {}
        }
        if from_dir != to_dir && self.is_below(node, to_dir) {
            return Err(EINVAL);
        }
        if let Some(target) = target {
            if from_dir != to_dir && self.is_below(target, from_dir) {
                let exchange = mode == Mode::Exchange;
                return Err(if exchange { EINVAL } else { ENOTEMPTY });
            }
            if node == target {
                return Ok(());
            }
            if mode != Mode::Exchange {
                match (self.is_dir(node), self.is_dir(target)) {
                    (true, false) => return Err(ENOTDIR),
                    (false, true) => return Err(EISDIR),
                    (true, true) if !self.dir(target)?.is_empty() => return Err(ENOTEMPTY),
                    _ => {}
                }
            }
        }
        self.dir_mut(from_dir).remove(from_name);
        if let (Mode::Exchange, Some(target)) = (mode, target) {
            self.dir_mut(from_dir).insert(from_name.to_owned(), target);
        }
        self.dir_mut(to_dir).insert(to_name.to_owned(), node);
        Ok(())
    }

    /// Sets the size of a file.
    pub fn resize(&mut self, node: Node, size: usize) {
        if size < self.size(node) {
            self.shrunk.push((node, size));
        }
        self.content_mut(node).resize(size);
    }

    /// All names of a node.
    fn names(&self, node: Node) -> usize {
        let entries = self.nodes.iter().filter_map(|entity| match &entity.body {
            Body::Dir(entries) => Some(entries.values().filter(|&&child| child == node).count()),
            Body::File(_) => None,
        });
        entries.sum()
    }

    pub fn attributes(&self, node: Node) -> Attributes {
        let entity = &self.nodes[node];
        let (size, links) = match &entity.body {
            Body::File(content) => (Some(content.bytes.len()), self.names(node)),
            Body::Dir(entries) => {
                let below = entries.values().filter(|&&child| self.is_dir(child));
                (None, 2 + below.count())
            }
        };
        Attributes {
            is_dir: size.is_none(),
            size,
            links: Some(links),
            number: entity.number,
        }
    }

    /// Paths of all files and directories but the root, and their nodes.
    pub fn paths(&self) -> Vec<(String, Node)> {
        let mut all = Vec::new();
        self.walk(0, "", &mut all);
        all
    }

    fn walk(&self, dir: Node, path: &str, all: &mut Vec<(String, Node)>) {
        for (name, &child) in self.dir(dir).expect("a directory") {
            let path = match path {
                "" => name.clone(),
                path => format!("{path}/{name}"),
            };
            if self.is_dir(child) {
                self.walk(child, &path, all);
            }
            all.push((path, child));
        }
    }

    /// Everything is durable; from now on the past counts if `recording`.
    pub fn barrier(&mut self, recording: bool) {
        self.recording = recording;
        for entity in &mut self.nodes {
            if let Body::File(content) = &mut entity.body {
                content.barrier(recording);
            }
        }
    }

    /// Forgets what neither a name nor one of `used` leads to, and answers where each of `used` is now.
    pub fn compact(&mut self, used: &[Node]) -> BTreeMap<Node, Node> {
        let mut moved = BTreeMap::from([(0, 0)]);
        let named = self.paths().into_iter().map(|(_, node)| node);
        for node in named.chain(used.iter().copied()) {
            let next = moved.len();
            moved.entry(node).or_insert(next);
        }
        let mut nodes: Vec<(Node, Entity)> = std::mem::take(&mut self.nodes)
            .into_iter()
            .enumerate()
            .filter_map(|(node, entity)| Some((*moved.get(&node)?, entity)))
            .collect();
        nodes.sort_by_key(|(node, _)| *node);
        for (_, entity) in &mut nodes {
            if let Body::Dir(entries) = &mut entity.body {
                entries.values_mut().for_each(|child| *child = moved[child]);
            }
        }
        self.nodes = nodes.into_iter().map(|(_, entity)| entity).collect();
        moved
    }
}
