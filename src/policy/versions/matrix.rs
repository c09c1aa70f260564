//! The table of drivers, toolkits and frameworks: `matrix.tsv`, or a site's own file in its place.

use super::CudaVersion;
use super::release::Release;
use std::fmt;

/// What comes with cuwarden.
const BUILT_IN: &str = include_str!("matrix.tsv");

/// What a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A release of the CUDA toolkit and the driver that comes with it.
    Toolkit,
    /// A major version of CUDA.
    Family,
    /// A driver that came with no toolkit.
    Driver,
    /// A wheel.
    Framework,
    /// Something else that needs a driver.
    Tool,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it is about.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The CUDA version that belongs to it.
    pub cuda: Option<CudaVersion>,
    /// The driver release that belongs to it.
    pub driver: Option<Release>,
    /// The document that says so.
    pub source: String,
}

/// The whole table.
#[derive(Clone, Debug)]
pub struct Matrix {
    rows: Vec<Row>,
}

/// A line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Counts from 1; 0 = the table as a whole.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.what),
            line => write!(f, "line {line}: {}", self.what),
        }
    }
}

impl Matrix {
    /// The table that comes with cuwarden.
    pub fn built_in() -> Matrix {
        // A test reads it.
        Matrix::parse(BUILT_IN).unwrap_or(Matrix { rows: Vec::new() })
    }

    /// Reads a table; its columns are described in `matrix.tsv`.
    pub fn parse(text: &str) -> Result<Matrix, Problem> {
        let mut rows = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.strip_suffix('\r').unwrap_or(line);
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            rows.push(row(line).map_err(|what| Problem { line: index + 1, what })?);
        }
        let matrix = Matrix { rows };
        if matrix.branches().is_empty() {
            return Err(Problem { line: 0, what: "no row tells the CUDA version of a driver".to_owned() });
        }
        Ok(matrix)
    }

    /// All rows, in the order of the file.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.kind == kind)
    }

    /// The CUDA version of a driver release. `None` where the table does not reach: below its oldest branch a driver has
    /// an older CUDA, above its newest one a newer, and nothing says which.
    pub fn cuda_of(&self, release: &Release) -> Option<CudaVersion> {
        let branches = self.branches();
        let newest = branches.iter().map(|(branch, _)| *branch).max()?;
        if release.branch() > newest {
            return None;
        }
        branches.iter().filter(|(branch, _)| *branch <= release.branch()).max().map(|(_, cuda)| *cuda)
    }

    /// The release that comes with a toolkit, or the first branch with a driver of this CUDA version.
    pub fn release_of(&self, cuda: CudaVersion) -> Option<&Row> {
        let with_driver = |row: &&Row| row.cuda == Some(cuda) && row.driver.is_some();
        self.of(Kind::Toolkit).chain(self.of(Kind::Driver)).find(with_driver)
    }

    /// The lowest release for minor-version compatibility with a runtime.
    pub fn family_of(&self, runtime: CudaVersion) -> Option<&Row> {
        self.of(Kind::Family)
            .find(|row| row.driver.is_some() && row.cuda.is_some_and(|cuda| cuda.major == runtime.major))
    }

    /// Things that need a newer release than this one.
    pub fn tools_beyond<'a>(&'a self, release: &'a Release) -> impl Iterator<Item = &'a Row> {
        self.of(Kind::Tool).filter(move |row| row.driver.as_ref().is_some_and(|needed| needed > release))
    }

    /// Of each framework the newest version with a runtime of CUDA `limit` or older of the same major.
    pub fn builds_up_to(&self, limit: CudaVersion) -> Vec<&Row> {
        let mut best: Vec<&Row> = Vec::new();
        let fits = |row: &&Row| row.cuda.is_some_and(|cuda| cuda.major == limit.major && cuda <= limit);
        for row in self.of(Kind::Framework).filter(fits) {
            let rank = |row: &Row| (numbers(&row.version), row.cuda);
            match best.iter_mut().find(|known| known.name == row.name) {
                Some(known) if rank(known) < rank(row) => *known = row,
                Some(_) => {}
                None => best.push(row),
            }
        }
        best
    }

    fn branches(&self) -> Vec<(u32, CudaVersion)> {
        let pair = |row: &Row| Some((row.driver.as_ref()?.branch(), row.cuda?));
        self.of(Kind::Toolkit).chain(self.of(Kind::Driver)).filter_map(pair).collect()
    }
}

fn row(line: &str) -> Result<Row, String> {
    let columns: Vec<&str> = line.split('\t').map(str::trim).collect();
    let [kind, name, version, cuda, driver, source] = columns[..] else {
        return Err(format!("{} columns separated by tabs, and not 6", columns.len()));
    };
    let kind = match kind {
        "toolkit" => Kind::Toolkit,
        "family" => Kind::Family,
        "driver" => Kind::Driver,
        "framework" => Kind::Framework,
        "tool" => Kind::Tool,
        other => {
            return Err(format!("the kind \"{other}\" is not toolkit, family, driver, framework or tool"));
        }
    };
    if [name, version, source].iter().any(|text| text.is_empty() || *text == "-") {
        return Err("a row needs a name, a version and a source".to_owned());
    }
    let cuda =
        optional(cuda, CudaVersion::parse).ok_or_else(|| format!("\"{cuda}\" is not a CUDA version"))?;
    let driver =
        optional(driver, Release::parse).ok_or_else(|| format!("\"{driver}\" is not a driver release"))?;
    if cuda.is_none() && kind != Kind::Tool {
        return Err("a row of this kind needs a CUDA version".to_owned());
    }
    let (name, version, source) = (name.to_owned(), version.to_owned(), source.to_owned());
    Ok(Row { kind, name, version, cuda, driver, source })
}

fn optional<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    if text == "-" { Some(None) } else { parse(text).map(Some) }
}

/// 2.10 is newer than 2.9.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::versions::{Outcome, Versions, judge, verdict};

    const fn v(major: u32, minor: u32) -> CudaVersion {
        CudaVersion::new(major, minor)
    }

    fn release(text: &str) -> Release {
        Release::parse(text).unwrap()
    }

    #[test]
    fn the_built_in_table_is_whole_and_in_order() {
        let matrix = Matrix::parse(BUILT_IN).unwrap();
        // Every toolkit from 11.0 to 13.5 that was published: there is no 12.7.
        let toolkits: Vec<CudaVersion> = matrix.of(Kind::Toolkit).map(|row| row.cuda.unwrap()).collect();
        let published = (0..=8).map(|n| v(11, n)).chain([0, 1, 2, 3, 4, 5, 6, 8, 9].map(|n| v(12, n)));
        assert_eq!(toolkits, published.chain((0..=5).map(|n| v(13, n))).collect::<Vec<_>>());
        let releases: Vec<&Release> =
            matrix.of(Kind::Toolkit).filter_map(|row| row.driver.as_ref()).collect();
        assert!(releases.is_sorted() && releases.len() >= 23);
        assert_eq!(matrix.of(Kind::Family).count(), 3);
        for name in ["PyTorch", "TensorFlow", "JAX", "NVIDIA Container Toolkit"] {
            assert!(matrix.rows().iter().any(|row| row.name == name), "{name}");
        }
        // Titles and versions, no places: those change, and nobody's host is named here.
        for row in matrix.rows() {
            assert!(
                row.source.len() > 15 && !row.source.contains("://") && !row.source.contains("www"),
                "{row:?}"
            );
        }
        assert_eq!(matrix.rows().len(), Matrix::built_in().rows().len());
    }

    #[test]
    fn a_release_has_the_cuda_version_of_its_branch() {
        let matrix = Matrix::built_in();
        for (text, cuda) in [
            ("450.51.05", v(11, 0)),
            ("470.256.02", v(11, 4)),
            ("520.61.05", v(11, 8)),
            ("525.147.05", v(12, 0)),
            // Measured: libcuda 535.261.03 and 535.309.01 answer 12020.
            ("535.261.03", v(12, 2)),
            ("535.309.01", v(12, 2)),
            ("535.43.02", v(12, 2)),
            ("550.163.01", v(12, 4)),
            ("565.57.01", v(12, 7)),
            ("575.64", v(12, 9)),
            ("580.65.06", v(13, 0)),
            ("610.43.02", v(13, 3)),
            ("615.71", v(13, 4)),
            ("616.56", v(13, 4)),
        ] {
            assert_eq!(matrix.cuda_of(&release(text)), Some(cuda), "{text}");
        }
        for text in ["440.33", "999.10"] {
            assert_eq!(matrix.cuda_of(&release(text)), None, "{text}");
        }
        assert_eq!(matrix.release_of(v(12, 4)).unwrap().driver, Some(release("550.54.14")));
        assert_eq!(matrix.release_of(v(12, 7)).unwrap().driver, Some(release("565.57.01")));
        assert_eq!(matrix.release_of(v(13, 5)), None);
        assert_eq!(matrix.family_of(v(12, 9)).unwrap().driver, Some(release("525.60.13")));
        assert_eq!(matrix.family_of(v(14, 0)), None);
    }

    /// What real runtimes did over the real libcuda 535: 13.5 answered cudaErrorInsufficientDriver, the others came as far
    /// as finding no device.
    #[test]
    fn the_rules_say_what_was_measured() {
        let driver = Matrix::built_in().cuda_of(&release("535.261.03")).unwrap();
        for (runtime, started) in [(v(11, 8), true), (v(12, 9), true), (v(13, 5), false)] {
            let of =
                Versions { driver, runtime: Some(runtime), baseline: None, is_exempt: false, strict: false };
            assert_eq!(verdict(&judge(&of)) != Outcome::Blocked, started, "{runtime}");
        }
    }

    #[test]
    fn builds_that_fit() {
        let matrix = Matrix::built_in();
        let of = |limit| -> Vec<String> {
            let name = |row: &Row| format!("{} {} {}", row.name, row.version, row.cuda.unwrap());
            matrix.builds_up_to(limit).into_iter().map(name).collect()
        };
        assert_eq!(of(v(12, 2)), ["PyTorch 2.5 12.1", "TensorFlow 2.15 12.2", "JAX 0.5 12.1"]);
        assert_eq!(of(v(12, 8))[0], "PyTorch 2.14 12.6", "2.14 is newer than 2.9");
        assert_eq!(of(v(11, 8)), ["PyTorch 2.7 11.8", "TensorFlow 2.14 11.8"]);
        assert!(of(v(14, 0)).is_empty());
    }

    #[test]
    fn a_sites_own_table() {
        let own = "# ours\r\n\ntoolkit\tCUDA Toolkit\t14.0\t14.0\t700.1\tour notes\r\ntool\tours\t1\t-\t650\tnotes\n";
        let matrix = Matrix::parse(own).unwrap();
        assert_eq!(matrix.cuda_of(&release("700.99")), Some(v(14, 0)));
        assert_eq!(matrix.tools_beyond(&release("640.1")).count(), 1);
        assert_eq!(matrix.tools_beyond(&release("650")).count(), 0);
        for (line, words) in [
            ("toolkit\tCUDA\t1\t12.4\t550.1", "5 columns"),
            ("kit\tCUDA\t1\t12.4\t550.1\ts", "the kind \"kit\""),
            ("toolkit\tCUDA\t1\t12\t550.1\ts", "\"12\" is not a CUDA version"),
            ("toolkit\tCUDA\t1\t-\t550.1\ts", "needs a CUDA version"),
            ("toolkit\tCUDA\t1\t12.4\t55\ts", "\"55\" is not a driver release"),
            ("toolkit\tCUDA\t1\t12.4\t550.1\t-", "a source"),
            ("toolkit CUDA 1 12.4 550.1 s", "1 columns"),
        ] {
            let problem = Matrix::parse(&format!("# a\n{line}\n")).unwrap_err();
            assert_eq!(problem.line, 2);
            assert!(problem.to_string().contains(words), "{problem}");
        }
        assert_eq!(Matrix::parse("").unwrap_err().line, 0);
    }
}
