//! Tests of very many cases run in shards: a share by default, another one or all of them on request.

/// Shard `index` of `count`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shard {
    index: u64,
    count: u64,
}

impl Shard {
    /// What the environment variable `name` asks for: `all`, or `INDEX/COUNT`; else the first of `usual` shards.
    pub(crate) fn of_env(name: &str, usual: u64) -> Self {
        let Ok(asked) = std::env::var(name) else {
            return Self {
                index: 0,
                count: usual,
            };
        };
        if asked == "all" {
            return Self { index: 0, count: 1 };
        }
        let parsed = asked
            .split_once('/')
            .and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        let (index, count) = parsed.unwrap_or_else(|| panic!("{name} is not all or k/n: {asked}"));
        assert!(index < count, "{name}: {asked}");
        Self { index, count }
    }

    /// Whether case `number` belongs to it.
    pub(crate) fn has(self, number: u64) -> bool {
        number % self.count == self.index
    }
}
