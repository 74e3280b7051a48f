//! A file system as simple as it can be: the judge of the model and crash tests.

use std::collections::BTreeMap;

use contigfs::{BlockStore, FileKind, Fs, FsError, InodeNo, RenameMode, XattrMode};

use super::{acl, content, names};

/// Number of a node in the oracle; node 0 is the root.
pub type Node = usize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    File(Vec<u8>),
    Dir(BTreeMap<String, Node>),
    Link(String),
    /// A pipe, socket or device, with its number.
    Special(FileKind, u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    pub body: Body,
    pub perm: u16,
    pub uid: u32,
    pub xattrs: Xattrs,
}

/// Extended attributes by name.
pub type Xattrs = BTreeMap<String, Vec<u8>>;

pub const ACCESS: &str = "system.posix_acl_access";
pub const DEFAULT: &str = "system.posix_acl_default";
pub const CAPABILITY: &str = "security.capability";

/// The whole tree. Nodes are never removed; those without names are just not reached.
#[derive(Clone, Debug)]
pub struct Oracle {
    pub nodes: Vec<Meta>,
}

/// What can be compared: path to (node in first-seen order, what is there).
pub type Picture = BTreeMap<String, (usize, Meta)>;

impl Default for Oracle {
    fn default() -> Self {
        Self {
            nodes: vec![Meta {
                body: Body::Dir(BTreeMap::new()),
                perm: 0o755,
                uid: 0,
                xattrs: Xattrs::new(),
            }],
        }
    }
}

impl Oracle {
    pub fn dir(&self, node: Node) -> Result<&BTreeMap<String, Node>, FsError> {
        match &self.nodes[node].body {
            Body::Dir(entries) => Ok(entries),
            _ => Err(FsError::NotDirectory),
        }
    }

    fn dir_mut(&mut self, node: Node) -> &mut BTreeMap<String, Node> {
        match &mut self.nodes[node].body {
            Body::Dir(entries) => entries,
            _ => panic!("checked before"),
        }
    }

    pub fn is_dir(&self, node: Node) -> bool {
        matches!(self.nodes[node].body, Body::Dir(_))
    }

    pub fn file_mut(&mut self, node: Node) -> Result<&mut Vec<u8>, FsError> {
        match &mut self.nodes[node].body {
            Body::File(bytes) => Ok(bytes),
            Body::Dir(_) => Err(FsError::IsDirectory),
            Body::Link(_) | Body::Special(..) => Err(FsError::Invalid),
        }
    }

    pub fn lookup(&self, dir: Node, name: &str) -> Result<Node, FsError> {
        self.dir(dir)?.get(name).copied().ok_or(FsError::NotFound)
    }

    pub fn add(&mut self, dir: Node, name: &str, body: Body, perm: u16) -> Result<Node, FsError> {
        if self.dir(dir)?.contains_key(name) {
            return Err(FsError::Exists);
        }
        let node = self.make(dir, body, perm);
        self.dir_mut(dir).insert(name.to_owned(), node);
        Ok(node)
    }

    /// A file that no name leads to yet.
    pub fn add_unnamed(&mut self, dir: Node, perm: u16) -> Node {
        self.make(dir, Body::File(Vec::new()), perm)
    }

    /// A node with what it inherits from a directory.
    fn make(&mut self, dir: Node, body: Body, perm: u16) -> Node {
        let (mut perm, mut xattrs) = (perm, Xattrs::new());
        if let Some(default) = self.nodes[dir].xattrs.get(DEFAULT)
            && !matches!(body, Body::Link(_))
        {
            let access = acl::inherit(default, perm);
            perm = acl::perm(&access);
            if acl::says_more(&access) {
                xattrs.insert(ACCESS.into(), access);
            }
            if matches!(body, Body::Dir(_)) {
                xattrs.insert(DEFAULT.into(), default.clone());
            }
        }
        self.nodes.push(Meta {
            body,
            perm,
            uid: 0,
            xattrs,
        });
        self.nodes.len() - 1
    }

    pub fn link(&mut self, node: Node, dir: Node, name: &str) -> Result<(), FsError> {
        if self.is_dir(node) {
            return Err(FsError::NotPermitted);
        }
        if self.dir(dir)?.contains_key(name) {
            return Err(FsError::Exists);
        }
        self.dir_mut(dir).insert(name.to_owned(), node);
        Ok(())
    }

    pub fn unlink(&mut self, dir: Node, name: &str) -> Result<Node, FsError> {
        let node = self.lookup(dir, name)?;
        if self.is_dir(node) {
            return Err(FsError::IsDirectory);
        }
        self.dir_mut(dir).remove(name);
        Ok(node)
    }

    pub fn rmdir(&mut self, dir: Node, name: &str) -> Result<(), FsError> {
        let node = self.lookup(dir, name)?;
        if !self.dir(node)?.is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.dir_mut(dir).remove(name);
        Ok(())
    }

    fn is_below(&self, top: Node, node: Node) -> bool {
        top == node
            || self.dir(top).is_ok_and(|entries| {
                entries
                    .values()
                    .any(|&child| self.is_dir(child) && self.is_below(child, node))
            })
    }

    pub fn rename(
        &mut self,
        (from, name): (Node, &str),
        (to, new_name): (Node, &str),
        mode: RenameMode,
    ) -> Result<(), FsError> {
        self.dir(from)?;
        self.dir(to)?;
        let node = self.lookup(from, name)?;
        let target = self.dir(to)?.get(new_name).copied();
        if mode == RenameMode::NoReplace && target.is_some() {
            return Err(FsError::Exists);
        }
        if from != to && self.is_dir(node) && self.is_below(node, to) {
            return Err(FsError::Invalid);
        }
        let Some(target) = target else {
            if mode == RenameMode::Exchange {
                return Err(FsError::NotFound);
            }
            self.dir_mut(from).remove(name);
            self.dir_mut(to).insert(new_name.to_owned(), node);
            return Ok(());
        };
        let dirs = (self.is_dir(node), self.is_dir(target));
        if dirs.1 && from != to && self.is_below(target, from) {
            return Err(match mode {
                RenameMode::Exchange => FsError::Invalid,
                _ if dirs.0 => FsError::NotEmpty,
                _ => FsError::IsDirectory,
            });
        }
        match mode {
            _ if node == target => return Ok(()),
            RenameMode::Exchange => {
                self.dir_mut(from).insert(name.to_owned(), target);
                self.dir_mut(to).insert(new_name.to_owned(), node);
                return Ok(());
            }
            RenameMode::Replace | RenameMode::NoReplace => {}
        }
        match dirs {
            (true, false) => return Err(FsError::NotDirectory),
            (false, true) => return Err(FsError::IsDirectory),
            (true, true) if !self.dir(target)?.is_empty() => return Err(FsError::NotEmpty),
            _ => {}
        }
        self.dir_mut(from).remove(name);
        self.dir_mut(to).insert(new_name.to_owned(), node);
        Ok(())
    }

    /// Sets an attribute; an access control list sets the mode.
    pub fn set_xattr(
        &mut self,
        node: Node,
        key: &str,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FsError> {
        let meta = &mut self.nodes[node];
        let exists = meta.xattrs.contains_key(key);
        let is_acl = key == ACCESS || key == DEFAULT;
        match (&meta.body, key) {
            (Body::Link(_), ACCESS | DEFAULT) => return Err(FsError::NotSupported),
            (Body::File(_) | Body::Special(..), DEFAULT) => return Err(FsError::NotPermitted),
            (Body::Link(_) | Body::Special(..), _) if key.starts_with("user.") => {
                return Err(FsError::NotPermitted);
            }
            _ if is_acl => {}
            _ if mode == XattrMode::Create && exists => return Err(FsError::Exists),
            _ if mode == XattrMode::Replace && !exists => return Err(FsError::NoXattr),
            _ => {}
        }
        if key == ACCESS {
            meta.perm = meta.perm & !0o777 | acl::perm(value);
        }
        if key == ACCESS && !acl::says_more(value) {
            meta.xattrs.remove(key);
        } else {
            meta.xattrs.insert(key.into(), value.into());
        }
        Ok(())
    }

    pub fn remove_xattr(&mut self, node: Node, key: &str) -> Result<(), FsError> {
        let removed = self.nodes[node].xattrs.remove(key).is_some();
        if removed || key == ACCESS || key == DEFAULT {
            Ok(())
        } else {
            Err(FsError::NoXattr)
        }
    }

    /// Changes permissions and owner.
    pub fn change(&mut self, node: Node, perm: u16, uid: u32) {
        let meta = &mut self.nodes[node];
        (meta.perm, meta.uid) = (perm, uid);
        if let Some(access) = meta.xattrs.get_mut(ACCESS) {
            *access = acl::chmod(access, perm);
        }
        // Nobody runs a directory.
        if !matches!(meta.body, Body::Dir(_)) {
            meta.xattrs.remove(CAPABILITY);
        }
    }

    /// The content has changed: the program it was has no capabilities any more.
    pub fn changed(&mut self, node: Node) {
        self.nodes[node].xattrs.remove(CAPABILITY);
    }

    pub fn truncate(&mut self, node: Node, size: usize) -> Result<(), FsError> {
        self.file_mut(node)?.resize(size, 0);
        self.nodes[node].xattrs.remove(CAPABILITY);
        Ok(())
    }

    /// Writes `bytes` at `offset`, filling a gap with zeros.
    pub fn write(&mut self, node: Node, offset: usize, bytes: &[u8]) -> Result<(), FsError> {
        let file = self.file_mut(node)?;
        if file.len() < offset + bytes.len() {
            file.resize(offset + bytes.len(), 0);
        }
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.nodes[node].xattrs.remove(CAPABILITY);
        Ok(())
    }

    /// Copies bytes from one file to another, or inside one if the ranges do not overlap; answers how many.
    pub fn copy(
        &mut self,
        (from, from_offset): (Node, u64),
        (to, to_offset): (Node, u64),
        len: u64,
    ) -> Result<u64, FsError> {
        let source = self.file_mut(from)?.clone();
        self.file_mut(to)?;
        if from == to && from_offset < to_offset + len && to_offset < from_offset + len {
            return Err(FsError::Invalid);
        }
        let start = (from_offset as usize).min(source.len());
        let end = ((from_offset + len) as usize).min(source.len());
        if start < end {
            self.write(to, to_offset as usize, &source[start..end])?;
        }
        Ok((end - start) as u64)
    }

    /// All paths, as they can be seen from the root.
    pub fn picture(&self) -> Picture {
        let mut picture = Picture::new();
        let mut seen = Vec::new();
        self.draw(0, "", &mut picture, &mut seen);
        picture
    }

    fn draw(&self, node: Node, path: &str, picture: &mut Picture, seen: &mut Vec<Node>) {
        let number = seen
            .iter()
            .position(|&other| other == node)
            .unwrap_or_else(|| {
                seen.push(node);
                seen.len() - 1
            });
        let mut meta = self.nodes[node].clone();
        if let Body::Dir(entries) = &mut meta.body {
            for (name, child) in std::mem::take(entries) {
                self.draw(child, &format!("{path}/{name}"), picture, seen);
            }
        }
        picture.insert(path.to_owned(), (number, meta));
    }
}

/// The same picture, taken of a real file system; link counts are checked on the way.
pub fn picture_of(fs: &Fs<impl BlockStore>) -> Result<Picture, FsError> {
    let mut picture = Picture::new();
    let mut seen = BTreeMap::new();
    draw(fs, InodeNo::ROOT, "", &mut picture, &mut seen)?;
    let mut links: BTreeMap<usize, u32> = BTreeMap::new();
    for (number, meta) in picture.values() {
        if !matches!(meta.body, Body::Dir(_)) {
            *links.entry(*number).or_default() += 1;
        }
    }
    for (ino, number) in seen {
        if let Some(&count) = links.get(&number) {
            assert_eq!(fs.attr(ino)?.nlink, count, "links of {ino:?}");
        }
    }
    Ok(picture)
}

fn draw(
    fs: &Fs<impl BlockStore>,
    ino: InodeNo,
    path: &str,
    picture: &mut Picture,
    seen: &mut BTreeMap<InodeNo, usize>,
) -> Result<(), FsError> {
    let count = seen.len();
    let number = *seen.entry(ino).or_insert(count);
    let attr = fs.attr(ino)?;
    let body = match attr.kind {
        FileKind::Directory => {
            for (name, child) in names(fs, ino)? {
                draw(fs, child, &format!("{path}/{name}"), picture, seen)?;
            }
            Body::Dir(BTreeMap::new())
        }
        FileKind::Symlink => Body::Link(String::from_utf8(fs.readlink(ino)?).unwrap()),
        FileKind::File => Body::File(content(fs, ino)?),
        kind => Body::Special(kind, attr.rdev),
    };
    picture.insert(
        path.to_owned(),
        (
            number,
            Meta {
                body,
                perm: attr.perm(),
                uid: attr.uid,
                xattrs: xattrs_of(fs, ino)?,
            },
        ),
    );
    Ok(())
}

/// All attributes of an inode.
pub fn xattrs_of(fs: &Fs<impl BlockStore>, ino: InodeNo) -> Result<Xattrs, FsError> {
    let mut all = Xattrs::new();
    for name in fs.xattrs(ino)? {
        let value = fs.xattr(ino, &name)?;
        all.insert(name.into_string().unwrap(), value);
    }
    Ok(all)
}
