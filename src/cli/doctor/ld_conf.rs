//! /etc/ld.so.conf and the files that it includes, read as ldconfig reads them.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::diagnose::machine::Place;

/// More than any machine has; files that include each other must end.
const MOST_FILES: usize = 500;

/// A file, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conf {
    pub path: String,
    pub text: String,
}

/// All files, each once, in the order in which they are read.
pub fn files(place: &Place) -> Vec<Conf> {
    let mut read: Vec<Conf> = Vec::new();
    // One file has many names, with .. and links in them.
    let mut known: HashSet<(u64, u64)> = HashSet::new();
    let mut waiting = vec!["/etc/ld.so.conf".to_owned()];
    while let Some(path) = waiting.pop() {
        let Ok(meta) = fs::metadata(place.path(&path)) else { continue };
        if read.len() >= MOST_FILES || !known.insert((meta.dev(), meta.ino())) {
            continue;
        }
        let Some(text) = place.text(&path) else { continue };
        let mut included: Vec<String> =
            lines(&text).filter_map(include).flat_map(|patterns| matching(place, &path, patterns)).collect();
        included.reverse();
        waiting.extend(included);
        read.push(Conf { path, text });
    }
    read
}

/// The folders that they name.
pub fn folders(place: &Place) -> Vec<String> {
    let files = files(place);
    let named = files.iter().flat_map(|file| lines(&file.text)).filter(|line| line.starts_with('/'));
    // An old form adds the kind of library after the folder.
    named.map(|line| line.split(['=', ' ', '\t']).next().unwrap_or(line).to_owned()).collect()
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    let plain = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    plain.filter(|line| !line.is_empty())
}

fn include(line: &str) -> Option<&str> {
    line.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])).map(str::trim)
}

/// What the patterns of an `include` line find; relative ones count from the file's own folder.
fn matching(place: &Place, file: &str, patterns: &str) -> Vec<String> {
    let folder = Path::new(file).parent().unwrap_or(Path::new("/"));
    let root = glob::Pattern::escape(&place.root.to_string_lossy());
    let options = glob::MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };
    let mut found = Vec::new();
    for pattern in patterns.split_ascii_whitespace() {
        let absolute = folder.join(pattern);
        // Two stars are one for ldconfig, and any depth for others.
        let text = absolute.to_string_lossy().replace("**", "*");
        let here = format!("{}/{}", root.trim_end_matches('/'), text.trim_start_matches('/'));
        for path in glob::glob_with(&here, options).into_iter().flatten().flatten().take(MOST_FILES) {
            let inside = path.strip_prefix(&place.root).unwrap_or(&path);
            found.push(Path::new("/").join(inside).to_string_lossy().into_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::fake::Fake;

    #[test]
    fn includes_comments_and_relative_patterns() {
        let fake = Fake::empty();
        fake.write(
            "etc/ld.so.conf",
            "/first # ours\ninclude /etc/ld.so.conf.d/*.conf extra/*\n /last/\n#/none\n",
        );
        fake.write("etc/ld.so.conf.d/b.conf", "/b\n/old=libc5\ninclude ../ld.so.conf\n");
        fake.write("etc/ld.so.conf.d/a.conf", "/a\nhwcap 1 x\nincluded /no\n");
        fake.write("etc/ld.so.conf.d/.hidden.conf", "/hidden\n");
        fake.write("etc/ld.so.conf.d/c.txt", "/other\n");
        fake.write("etc/extra/one", "/extra\ninclude one\n");
        assert_eq!(folders(&fake.place()), ["/first", "/last/", "/a", "/b", "/old", "/extra"]);
        assert!(folders(&Fake::empty().place()).is_empty());
    }
}
