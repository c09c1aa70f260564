//! The thread that follows live memory through time and says what is suspicious.
//!
//! Started with the first context, since nothing of CUDA may be left behind by a process that has none. It calls neither the
//! driver nor the loader and holds no lock, so that a fork at any moment is as good as without it.

use super::{Process, report};
use crate::event::cancel::Undisturbed;
use crate::growth::drift::{Detector, Live, Suspicion};
use crate::policy::config::Level;
use crate::record::layout::{Area, Device};
use crate::record::snapshot::NOTE_LEAK_SUSPECT;
use crate::report::suspect;
use crate::tracking::samples::Sampler;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Of a core, the most that is spent on looking: one part in so many.
const THRIFT: u32 = 200;
/// The least and the most between two looks.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(60));

impl Process {
    /// A context exists: threads may be started from now on.
    pub fn has_context(&self) {
        self.events.allow_thread();
        // Relaxed: only a ticket.
        if self.config.drift.is_none()
            || self.is_forked()
            || self.growth_started.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let Some(process) = Process::current() else { return };
        // A thread inherits the mask: none of the application's signals must be delivered to ours.
        let _undisturbed = Undisturbed::new();
        // Where no thread is to be had, the reports have no time axis, and nobody is the worse for it.
        let _ = std::thread::Builder::new()
            .name("cuwarden-growth".into())
            .stack_size(128 << 10)
            .spawn(move || follow(process));
    }

    fn age(&self) -> Duration {
        Duration::from_nanos(self.age_ns())
    }
}

fn follow(process: &'static Process) {
    let Some(settings) = process.config.drift else { return };
    let writer = &process.writer;
    let mut sampler = Sampler::new();
    let mut detector = Detector::new(settings);
    let pace = Duration::try_from_secs_f64(detector.pace_s()).unwrap_or(PAUSE.1);
    let first_context = process.age();
    let mut calls = None;
    loop {
        let began = process.age();
        let spent_before = spent();
        let now_calls = process.index.all_calls(writer);
        // Nothing was allocated or freed: what was seen last is true still.
        if calls != Some(now_calls) {
            calls = Some(now_calls);
            sampler.look(writer);
        }
        let kept = sampler.keep(writer, began);
        let at_s = began.saturating_sub(first_context).as_secs_f64();
        let live = Live { at_s, bytes: sampler.live(), devices: sampler.devices() };
        detector.see(live).iter().for_each(|suspicion| say(process, suspicion));
        if kept {
            for (device, entry) in (0u8..).zip(&writer.header().devices) {
                let Some(room) = room(process, device, entry) else { continue };
                let course = |series| sampler.course(writer, series);
                if let Some(suspicion) = detector.look_back(live, device, room, &course) {
                    say(process, &suspicion);
                }
            }
        }
        let now = process.age();
        let sparing = spent().saturating_sub(spent_before).saturating_mul(THRIFT);
        let pause = sampler.next().saturating_sub(now).min(pace).max(sparing).clamp(PAUSE.0, PAUSE.1);
        std::thread::sleep(pause);
    }
}

/// What this thread has had of a core so far.
fn spent() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the answer; on failure it stays zero.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// What is left of a device for this process. Under a quota others of the directory take from the same.
fn room(process: &Process, number: u8, device: &Device) -> Option<u64> {
    let account = process.account(number)?;
    let (most, used) = match account.limit() {
        0 => (device.total_bytes.load(Ordering::Relaxed), account.held()),
        limit => (limit, account.used()),
    };
    Some(most.saturating_sub(used))
}

#[cold]
fn say(process: &Process, suspicion: &Suspicion) {
    // The records are left out: they may be many, and a suspicion is about call stacks.
    let areas = [Area::Stacks, Area::Modules, Area::Series];
    let snapshot = report::snapshot_of(process, &areas).unwrap_or_default();
    let origin_of = |series: usize| snapshot.series.get(series).map(|series| series.origin);
    let fields = suspect::fields(&snapshot, suspicion, &origin_of);
    process.keep_note(NOTE_LEAK_SUSPECT, &fields);
    process.events.emit(Level::Warn, "leak_suspect", fields);
}
