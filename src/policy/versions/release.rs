//! Releases of the driver.

use std::fmt;

/// A release of the driver, such as 535.183.01.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    numbers: Vec<u32>,
    text: String,
}

impl Release {
    /// Up to four numbers, the first of three digits: no CUDA version is that high.
    pub fn parse(text: &str) -> Option<Release> {
        let number = |part: &str| {
            let plain = (1..=5).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse().ok().filter(|_| plain)
        };
        let numbers: Vec<u32> = text.split('.').map(number).collect::<Option<_>>()?;
        let branch = numbers.first().is_some_and(|branch| (100..1000).contains(branch));
        (branch && numbers.len() <= 4).then(|| Release { numbers, text: text.to_owned() })
    }

    /// The same, and not a branch alone: a file or a module has a whole one.
    pub fn parse_whole(text: &str) -> Option<Release> {
        Release::parse(text).filter(|release| (2..=3).contains(&release.numbers.len()))
    }

    /// The first number, which tells the CUDA version.
    pub fn branch(&self) -> u32 {
        self.numbers.first().copied().unwrap_or(0)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        let release = |text| Release::parse(text).unwrap();
        for text in ["535.183.01", "570.26", "615", "450.80.02", "535.104.05.1"] {
            assert_eq!(release(text).to_string(), text);
        }
        for text in [
            "",
            "1",
            "12.4",
            "12040",
            "535.",
            ".535",
            "535.183.1x",
            "535.183.01-1",
            "535,183",
            "+535.1",
            "1535.1",
            "099.1",
            "535.1.2.3.4",
            "v535",
            "12.4.1",
        ] {
            assert_eq!(Release::parse(text), None, "{text:?}");
        }
        assert!(release("535.183.01") > release("535.54.03") && release("535.54.03") > release("535"));
        assert!(release("570.124.06") > release("570.26") && release("550.54.14") > release("535.183.01"));
        assert_eq!(release("470.42").branch(), 470);
        for text in ["535", "535.1.2.3"] {
            assert_eq!(Release::parse_whole(text), None, "{text}");
        }
        assert_eq!(Release::parse_whole("535.183.01"), Release::parse("535.183.01"));
    }
}
