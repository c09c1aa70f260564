//! What a process knows that only looks: it asks NVML and may never use CUDA.
//!
//! It has no slot, no file and no thread. It reads the configuration and, if there is one, the ledger. A forked child
//! begins afresh: a lock of its parent's may have been taken at that moment.

use super::Process;
use super::alive::Alive;
use super::start::{check_owner, default_directory};
use crate::event::cancel::Undisturbed;
use crate::ledger::limit::Limit;
use crate::ledger::liveness::Who;
use crate::ledger::view::{DeviceView, View};
use crate::policy::config::{self, Config};
use crate::policy::limit::Limits;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What there is to know at a moment.
pub struct Sight {
    /// What the environment says.
    pub limits: Limits,
    /// `None`: the directory has no ledger, or none that can be read.
    pub ledger: Option<Accounts>,
}

/// What the ledger says.
pub struct Accounts {
    /// Those that somebody has used.
    pub devices: Vec<DeviceView>,
    /// For all others.
    pub default_limit: Limit,
    /// This process.
    pub me: Who,
}

/// `None`: every call is to be handed through.
pub fn look() -> Option<Sight> {
    let _undisturbed = Undisturbed::new();
    if let Some(process) = Process::current() {
        // The ledger that it takes part in, even if another one lies in its place by now.
        return Some(sight(&process.config.limits, Some(&View::of(&process.ledger))));
    }
    let observer = observer();
    let settings = observer.settings.as_ref()?;
    let mut looking = observer.looking.lock().unwrap_or_else(PoisonError::into_inner);
    looking.follow(settings);
    Some(sight(&settings.limits, looking.view.as_ref()))
}

fn sight(limits: &Limits, view: Option<&View>) -> Sight {
    let accounts = |view: &View| Accounts {
        devices: view.devices(),
        default_limit: view.default_limit(),
        me: Who::this_process(),
    };
    Sight { limits: limits.clone(), ledger: view.map(accounts) }
}

/// What is kept between looks. Made once, never freed.
struct Observer {
    /// `None`: the configuration says to stay out of it, or cannot be used; whoever starts CUDA will say so.
    settings: Option<Settings>,
    looking: Mutex<Looking>,
    pid: u32,
    alive: Alive,
}

struct Settings {
    limits: Limits,
    directory: PathBuf,
    is_default: bool,
}

#[derive(Default)]
struct Looking {
    view: Option<View>,
    asked: Option<Instant>,
}

static OBSERVER: AtomicPtr<Observer> = AtomicPtr::new(std::ptr::null_mut());

fn observer() -> &'static Observer {
    let mut known = OBSERVER.load(Ordering::Acquire);
    loop {
        // SAFETY: null or a leaked box.
        if let Some(observer) = unsafe { known.as_ref() }
            && observer.alive.is_ours(observer.pid)
        {
            return observer;
        }
        let fresh = Box::into_raw(Box::new(Observer {
            settings: settings(),
            looking: Mutex::default(),
            pid: std::process::id(),
            alive: Alive::new(),
        }));
        // Release pairs with the Acquire above: the box is whole.
        match OBSERVER.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: a leaked box.
            Ok(_) => return unsafe { &*fresh },
            Err(other) => {
                // SAFETY: made above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                known = other;
            }
        }
    }
}

fn settings() -> Option<Settings> {
    let var = |name: &str| std::env::var_os(name);
    if config::is_disabled(var("CUWARDEN_DISABLE").as_deref()) {
        return None;
    }
    let (config, errors) = Config::parse(&var);
    errors.is_empty().then(|| Settings {
        limits: config.limits,
        is_default: config.dir.is_none(),
        directory: config.dir.unwrap_or_else(default_directory),
    })
}

impl Looking {
    /// A ledger may come at any time, and another one in its place. More often than this is not looked.
    const PAUSE: Duration = Duration::from_secs(1);

    fn follow(&mut self, settings: &Settings) {
        let now = Instant::now();
        if self.asked.is_some_and(|asked| now.saturating_duration_since(asked) < Self::PAUSE) {
            return;
        }
        self.asked = Some(now);
        if !self.view.as_ref().is_some_and(View::is_current) {
            self.view = settings.open();
        }
    }
}

impl Settings {
    fn open(&self) -> Option<View> {
        if self.is_default {
            check_owner(&self.directory).ok()?;
        }
        View::open(&self.directory).ok().flatten()
    }
}
