//! Takes out of a text what may not leave the machine: names of hosts and users, addresses, home folders, secrets.
//!
//! It takes out too much rather than too little: whoever reads the text loses little by a version number that looked like
//! an address.

use std::ffi::OsString;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use regex_lite::{Captures, Regex};
use serde_json::Value;

use crate::diagnose::machine::Place;

/// Names that tell nothing of anybody, and that such texts are full of.
const COMMON: [&str; 18] = [
    "root",
    "nvidia",
    "cuda",
    "cuwarden",
    "gpu",
    "driver",
    "user",
    "localhost",
    "linux",
    "lib",
    "usr",
    "dev",
    "proc",
    "bin",
    "etc",
    "tmp",
    "ok",
    "localdomain",
];
const SECRET: &str = "[secret]";
/// Words in names of variables whose values are nobody's business.
const SECRET_NAMES: [&str; 17] = [
    "TOKEN",
    "TOKENS",
    "KEY",
    "KEYS",
    "APIKEY",
    "SECRET",
    "SECRETS",
    "PASS",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PWD",
    "CREDENTIAL",
    "CREDENTIALS",
    "AUTH",
    "COOKIE",
    "SIGNATURE",
];

/// Knows what to take out.
pub struct Redactor {
    /// In small letters, each with what stands in its place, the longest first.
    words: Vec<(String, &'static str)>,
    homes: Vec<String>,
    patterns: Patterns,
}

struct Patterns {
    secrets: Vec<(Regex, &'static str)>,
    random: Regex,
    home: Regex,
    hardware: Regex,
    ipv4: Regex,
    ipv6: Regex,
}

impl Redactor {
    /// For this machine. `variable` answers like `std::env::var_os`.
    pub fn new(place: &Place, variable: &dyn Fn(&str) -> Option<OsString>) -> Redactor {
        let text = |name: &str| variable(name).map(|value| value.to_string_lossy().into_owned());
        // Tests put a folder in the place of the machine; whose names the texts could have is the machine's matter all
        // the same.
        let here = Place { root: PathBuf::from("/") };
        let mut words: Vec<(String, &'static str)> = Vec::new();
        let mut homes: Vec<String> = text("HOME").into_iter().collect();
        for place in [place, &here] {
            words.extend(hosts(place).into_iter().map(|name| (name, "[host]")));
            for (user, home) in users(place) {
                words.push((user, "[user]"));
                homes.push(home);
            }
        }
        words.extend(["HOSTNAME", "HOST"].iter().filter_map(|name| Some((text(name)?, "[host]"))));
        words.extend(
            ["USER", "LOGNAME", "SUDO_USER", "USERNAME"]
                .iter()
                .filter_map(|name| Some((text(name)?, "[user]"))),
        );
        // A host with its domain is known by its first part as well.
        let short: Vec<_> = words
            .iter()
            .filter(|(_, what)| *what == "[host]")
            .filter_map(|(name, what)| Some((name.split_once('.')?.0.to_owned(), *what)))
            .collect();
        words.extend(short);
        words.iter_mut().for_each(|(word, _)| word.make_ascii_lowercase());
        words.retain(|(word, _)| word.len() > 1 && !COMMON.contains(&word.as_str()));
        words.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.cmp(b)));
        words.dedup();
        homes.retain(|home| home.len() > 1 && home.starts_with('/'));
        homes.sort_by_key(|home| std::cmp::Reverse(home.len()));
        Redactor { words, homes, patterns: Patterns::new() }
    }

    /// The text without all that.
    pub fn text(&self, text: &str) -> String {
        let mut out = text.to_owned();
        for (pattern, with) in &self.patterns.secrets {
            out = pattern.replace_all(&out, *with).into_owned();
        }
        out = replace(&self.patterns.random, &out, |text, _, _| is_random(text).then_some(SECRET));
        for home in &self.homes {
            let end = |c: Option<char>| c.is_none_or(|c| !is_name(c));
            out = replace_word(&out, home.trim_end_matches('/'), "[home]", |_| true, end);
        }
        out = self.patterns.home.replace_all(&out, "[home]").into_owned();
        out = replace(&self.patterns.hardware, &out, |_, before, after| {
            let part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == ':');
            (!part(before) && !part(after)).then_some("[mac]")
        });
        out = replace(&self.patterns.ipv6, &out, |text, before, after| {
            let part = |c: Option<char>| c.is_some_and(is_name);
            let is_address = text.trim_end_matches(['.', ':']).parse::<Ipv6Addr>().is_ok()
                || text.parse::<Ipv6Addr>().is_ok_and(|address| !address.is_unspecified());
            (!part(before) && !part(after) && is_address).then_some("[ip]")
        });
        out = self
            .patterns
            .ipv4
            .replace_all(&out, |found: &Captures| {
                let [whole, before, address] =
                    [0, 1, 2].map(|n| found.get(n).map_or("", |part| part.as_str()));
                // libnvinfer.so.10.1.2.3 is no address.
                if before.ends_with(".so.") || address.parse::<Ipv4Addr>().is_err() {
                    whole.to_owned()
                } else {
                    format!("{before}[ip]")
                }
            })
            .into_owned();
        // There may be thousands of hosts, and hardly any is named.
        let mut low = out.to_ascii_lowercase();
        for (word, with) in &self.words {
            if low.contains(word) {
                let apart = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
                out = replace_word(&out, word, with, apart, apart);
                low = out.to_ascii_lowercase();
            }
        }
        out
    }

    /// The same in every text of a value, except in those that we made ourselves and scripts go by.
    pub fn json(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(all) => all.iter_mut().for_each(|one| self.json(one)),
            Value::Object(fields) => {
                let ours = ["schema", "check", "verdict", "found_by", "call"];
                fields
                    .iter_mut()
                    .filter(|(key, _)| !ours.contains(&key.as_str()))
                    .for_each(|(_, one)| self.json(one));
            }
            _ => {}
        }
    }

    /// A variable: name and value where the value matters for CUDA and is no secret, else the name.
    pub fn variable(&self, name: &str, value: &str) -> String {
        let matters = ["CUDA", "NVIDIA", "CUWARDEN", "LD_"].iter().any(|start| name.starts_with(start));
        let shown = self.text(name);
        if !matters {
            return shown;
        }
        let is_secret =
            name.split(['_', '-']).any(|word| SECRET_NAMES.contains(&word.to_ascii_uppercase().as_str()));
        format!("{shown}={}", if is_secret { SECRET.to_owned() } else { self.text(value) })
    }
}

impl Patterns {
    #[allow(clippy::expect_used, reason = "the patterns are constants, and a test compiles them")]
    fn new() -> Patterns {
        let regex = |pattern: &str| Regex::new(pattern).expect("it is a pattern");
        let secrets = [
            (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(-----END [A-Z ]*-----)?", SECRET),
            (
                r"(gh[pousr]_|github_pat_|glpat-|hf_|nvapi-|sk-|xox[abprs]-|AKIA|ASIA|eyJ)[A-Za-z0-9_.-]{8,}",
                SECRET,
            ),
            (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/_.=-]{8,}", SECRET),
            (r"(?i)([a-z][a-z0-9+.-]*://)[^/\s@]+@", "${1}[secret]@"),
            (
                r#"(?i)((?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|credentials?)[a-z0-9_]*["']?\s*[=:]\s*["']?)[^\s"',;&]+"#,
                "${1}[secret]",
            ),
            (
                r"(?i)(--?[a-z0-9-]*(?:token|secret|passw(?:or)?d|api-?key)[a-z0-9-]*\s+)[^\s-]\S*",
                "${1}[secret]",
            ),
        ];
        Patterns {
            secrets: secrets.map(|(pattern, with)| (regex(pattern), with)).into(),
            random: regex(r"[A-Za-z0-9_+=-]{28,}"),
            home: regex(r"/(home|Users)/[^/\s:;,'\x22)\]]+"),
            hardware: regex(r"(?i)[0-9a-f]{2}([:-][0-9a-f]{2}){5,19}"),
            ipv4: regex(r"(\.so\.|\b)([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})\b"),
            ipv6: regex(r"[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*"),
        }
    }
}

/// Letters of both kinds and digits without a pattern, or a long row of hexadecimal digits. UUIDs and names are neither.
fn is_random(text: &str) -> bool {
    let count = |of: fn(&u8) -> bool| text.bytes().filter(of).count();
    let digits = count(u8::is_ascii_digit);
    let mixed = digits > 2 && count(u8::is_ascii_uppercase) > 2 && count(u8::is_ascii_lowercase) > 2;
    let hex = text.len() >= 32 && digits > 2 && text.bytes().all(|b| b.is_ascii_hexdigit());
    hex || (mixed && !is_uuid(text))
}

/// `GPU-` and `MIG-` with what follows.
fn is_uuid(text: &str) -> bool {
    let rest = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
    rest.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'))
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Replaces what `with` has an answer for; it is told of the characters on both sides.
fn replace(
    pattern: &Regex,
    text: &str,
    with: impl Fn(&str, Option<char>, Option<char>) -> Option<&'static str>,
) -> String {
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    for found in pattern.find_iter(text) {
        let before = text.get(..found.start()).and_then(|part| part.chars().next_back());
        let after = text.get(found.end()..).and_then(|part| part.chars().next());
        if let Some(with) = with(found.as_str(), before, after) {
            out += text.get(from..found.start()).unwrap_or_default();
            out += with;
            from = found.end();
        }
    }
    out + text.get(from..).unwrap_or_default()
}

/// Replaces a word, in letters of either case, where the characters on its sides are good.
fn replace_word(
    text: &str,
    word: &str,
    with: &str,
    before: impl Fn(Option<char>) -> bool,
    after: impl Fn(Option<char>) -> bool,
) -> String {
    // ASCII alone changes: places in the one text are those in the other.
    let (low, word) = (text.to_ascii_lowercase(), word.to_ascii_lowercase());
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    for (at, _) in low.match_indices(&word) {
        let end = at + word.len();
        let sides = (
            text.get(..at).and_then(|part| part.chars().next_back()),
            text.get(end..).and_then(|part| part.chars().next()),
        );
        if at >= from && before(sides.0) && after(sides.1) {
            out += text.get(from..at).unwrap_or_default();
            out += with;
            from = end;
        }
    }
    out + text.get(from..).unwrap_or_default()
}

/// Names of this host, its domains, and the hosts that it knows by name.
fn hosts(place: &Place) -> Vec<String> {
    let own = ["/proc/sys/kernel/hostname", "/etc/hostname"].iter().filter_map(|path| place.text(path));
    let mut names: Vec<String> = own.map(|text| text.trim().to_owned()).collect();
    let plain = |path: &str| {
        let text = place.text(path).unwrap_or_default();
        text.lines().map(|line| line.split('#').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    for line in plain("/etc/hosts") {
        let known = line.split_whitespace().skip(1).filter(|name| !name.starts_with("ip6-"));
        names.extend(known.map(str::to_owned));
    }
    for line in plain("/etc/resolv.conf") {
        let mut parts = line.split_whitespace();
        if matches!(parts.next(), Some("search" | "domain")) {
            names.extend(parts.map(|domain| domain.trim_matches('.').to_owned()));
        }
    }
    names
}

/// People, with their home folders, and whoever this is.
fn users(place: &Place) -> Vec<(String, String)> {
    let own = std::fs::metadata("/proc/self").map(|meta| meta.uid()).ok();
    let text = place.text("/etc/passwd").unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let uid: u32 = fields.get(2)?.parse().ok()?;
        let is_person = (1000..65534).contains(&uid) || Some(uid) == own;
        is_person.then(|| Some(((*fields.first()?).to_owned(), (*fields.get(5)?).to_owned())))?
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::fake::Fake;

    fn redactor() -> Redactor {
        let fake = Fake::empty();
        fake.write("etc/hostname", "gpu-node-17.lab.example\n");
        fake.write("etc/hosts", "10.1.2.3 storage9 storage9.lab.example # mine\n::1 ip6-localhost\n");
        fake.write("etc/resolv.conf", "search lab.example corp.example.\nnameserver 10.0.0.53\n");
        fake.write(
            "etc/passwd",
            "root:x:0:0::/root:/bin/sh\nzoe:x:1001:1001:Zoe:/data/people/zoe:/bin/sh\nnvidia:x:1002:1:::\n",
        );
        Redactor::new(&fake.place(), &|_| None)
    }

    #[test]
    fn what_goes() {
        let redactor = redactor();
        for (text, expected) in [
            ("on gpu-node-17.lab.example.", "on [host]."),
            ("GPU-NODE-17: up, storage9/x", "[host]: up, [host]/x"),
            ("zoe's /data/people/zoe/train, Zoe", "[user]'s [home]/train, [user]"),
            ("/home/eve/x:/home/bob", "[home]/x:[home]"),
            ("10.0.0.53 and 192.168.1.1:8080.", "[ip] and [ip]:8080."),
            ("fe80::1ff:fe23:4567:890a%eth0 [::1]:80 2001:db8::1, ::", "[ip]%eth0 [[ip]]:80 [ip], ::"),
            ("aa:bb:cc:dd:ee:ff AA-BB-CC-DD-EE-FF", "[mac] [mac]"),
            ("hf_abcdefghijk sk-abcdefgh12345", "[secret] [secret]"),
            ("https://me:pw@host/x", "https://[secret]@host/x"),
            (
                "--password hunter2 --api-key=k1 TOKEN: abc",
                "--password [secret] --api-key=[secret] TOKEN: [secret]",
            ),
            ("Authorization: Bearer abcdefgh123", "Authorization: [secret]"),
            ("x AbCdEf0123456789AbCdEf0123456789 y", "x [secret] y"),
            ("0123456789abcdef0123456789abcdef", "[secret]"),
            ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\n", "[secret]\n"),
        ] {
            assert_eq!(redactor.text(text), expected, "{text}");
        }
    }

    #[test]
    fn what_stays() {
        let redactor = redactor();
        for text in [
            "driver 535.183.01, CUDA 12.2, /proc/driver/nvidia/version",
            "GPU-8e8c1c0a-1234-5678-9abc-def012345678 00000000:17:00.0 0000:17:00.0",
            "libnvinfer.so.10.1.2.3 libcuda.so.535.183.01 nvidia_cuda_runtime-99.1.5.dist-info",
            "std::fs 12:34:56 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility: the keyboard, authors",
            "zoetrope /homework/x éöü",
        ] {
            assert_eq!(redactor.text(text), text);
        }
    }

    #[test]
    fn many_hosts_and_long_texts() {
        let fake = Fake::empty();
        let hosts: String = (0..5000).map(|n| format!("10.0.{}.{} worker-{n}\n", n / 250, n % 250)).collect();
        fake.write("etc/hosts", &hosts);
        let redactor = Redactor::new(&fake.place(), &|_| None);
        assert_eq!(redactor.text("on worker-4711, not on worker-9999"), "on [host], not on worker-9999");
        let began = std::time::Instant::now();
        for part in ["a", "1.", ":", "a:", "-", "/home/", "token=", "aa:"] {
            let _ = redactor.text(&part.repeat((64 << 10) / part.len()));
        }
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }

    #[test]
    fn variables() {
        let redactor = redactor();
        for (name, value, expected) in [
            ("CUDA_VISIBLE_DEVICES", "0,1", "CUDA_VISIBLE_DEVICES=0,1"),
            ("LD_LIBRARY_PATH", "/home/eve/lib", "LD_LIBRARY_PATH=[home]/lib"),
            ("NVIDIA_API_KEY", "1", "NVIDIA_API_KEY=[secret]"),
            ("CUWARDEN_LABELS", "token=abc", "CUWARDEN_LABELS=token=[secret]"),
            ("AWS_SECRET", "x", "AWS_SECRET"),
            ("PATH", "/bin", "PATH"),
        ] {
            assert_eq!(redactor.variable(name, value), expected);
        }
    }
}
