//! Releases of the driver.

use std::fmt;

/// As in 535.183.01.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverRelease {
    numbers: Vec<u32>,
    text: String,
}

impl DriverRelease {
    /// `None` for what is no release: two or three numbers, the first of three digits.
    pub fn parse(text: &str) -> Option<DriverRelease> {
        let numbers: Vec<u32> = text
            .split('.')
            .map(|part| (part.len() <= 4).then(|| part.parse().ok())?)
            .collect::<Option<_>>()?;
        let whole = (2..=3).contains(&numbers.len()) && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        (whole && numbers.first().is_some_and(|first| (100..1000).contains(first)))
            .then(|| DriverRelease { numbers, text: text.to_owned() })
    }

    /// The branch: 535.
    pub fn branch(&self) -> u32 {
        self.numbers.first().copied().unwrap_or(0)
    }
}

impl fmt::Display for DriverRelease {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        let release = |text| DriverRelease::parse(text).unwrap();
        assert!(release("535.183.01") > release("535.54.03") && release("550.54.14") > release("535.183.01"));
        assert_eq!((release("470.42").branch(), release("470.42").to_string()), (470, "470.42".to_owned()));
        for text in ["", "1", "12.4", "535", "535.", "535.1.2.3", "535.x", "535.183.01-1", "+535.1"] {
            assert_eq!(DriverRelease::parse(text), None, "{text}");
        }
    }
}
