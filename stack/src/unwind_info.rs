//! Compiling a module's unwind data into [`Rule`]s, one code address at a time.

use super::arch::{self, Address, FRAME_POINTER, RETURN_ADDRESS, RETURN_ADDRESS_OFFSET, STACK_POINTER};
use super::cache::RULES;
use super::loader::{Generation, Loaded, visit};
use super::rule::{Cfa, Rule, Saved};
use core::ops::ControlFlow;
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, FrameDescriptionEntry, LittleEndian, Pointer,
    Register, RegisterRule, UnwindContext, UnwindContextStorage, UnwindExpression, UnwindSection,
    UnwindTableRow,
};

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Finds the rule for the code at `pc` and remembers it. `None` if the loader cannot be asked now.
///
/// Takes microseconds and about 4 KiB of stack.
#[cold]
#[inline(never)]
pub(super) fn learn(pc: u64) -> Option<(Rule, Generation)> {
    // SAFETY: libc's own, always valid for this thread.
    let errno = unsafe { *libc::__errno_location() };
    let mut found = None;
    visit(&mut |module, generation| {
        if module.holds_code(pc) {
            found = Some((compile(module, pc).unwrap_or(Rule::END), generation));
            return ControlFlow::Break(());
        }
        // Generated code, or no code at all. Remembered too, so that it does not cost a search each time.
        found = Some((Rule::outside(generation.loads()), generation));
        ControlFlow::Continue(())
    });
    if let Some((rule, generation)) = found {
        RULES.insert(pc, generation, rule);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    found
}

/// The rule at `pc`; `None` where there is no unwind data or none that we follow.
fn compile(module: &Loaded<'_>, pc: u64) -> Option<Rule> {
    let index = module.segments(libc::PT_GNU_EH_FRAME).next()?;
    let (index_at, _) = module.range(index)?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(index_at);
    let index = EhFrameHdr::new(module.constant_data(index_at)?, LittleEndian);
    let index = index.parse(&bases, 8).ok()?;
    let Pointer::Direct(frames_at) = index.eh_frame_ptr() else {
        return None;
    };
    // The section's length is not recorded: it ends before its segment does.
    let frames = EhFrame::new(module.constant_data(frames_at)?, LittleEndian);
    let bases = bases.set_eh_frame(frames_at);

    let Pointer::Direct(entry_at) = index.table()?.lookup(pc, &bases).ok()? else {
        return None;
    };
    let offset = usize::try_from(entry_at.checked_sub(frames_at)?).ok()?;
    let entry = frames.fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset).ok()?;
    // The index names the last entry that begins at or before `pc`; there may be a hole after it.
    if !entry.contains(pc) {
        return None;
    }
    if entry.is_signal_trampoline() {
        return Some(Rule::SIGNAL_FRAME);
    }
    let mut context = UnwindContext::<usize, OnStack>::new_in();
    let row = entry.unwind_info_for_address(&frames, &bases, &mut context, pc).ok()?;
    reduce(&frames, &entry, row, pc)
}

type Row = UnwindTableRow<usize, OnStack>;

fn reduce(
    frames: &EhFrame<Bytes<'_>>,
    entry: &FrameDescriptionEntry<Bytes<'_>>,
    row: &Row,
    pc: u64,
) -> Option<Rule> {
    let expression =
        |expression: UnwindExpression<usize>| arch::reduce(expression.get(frames).ok()?.0.slice(), pc);
    let rule_for = |register: Register| row.register(register).unwrap_or(RegisterRule::SameValue);

    // Anything else has no return address: the outermost frame, which marks it as undefined.
    if entry.cie().return_address_register() != RETURN_ADDRESS
        || rule_for(RETURN_ADDRESS) != RegisterRule::Offset(RETURN_ADDRESS_OFFSET)
    {
        return None;
    }
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            let offset = i32::try_from(*offset).ok()?;
            match *register {
                STACK_POINTER => Cfa::Sp(offset),
                FRAME_POINTER => Cfa::Bp(offset),
                // Only hand-written code keeps it elsewhere, and such code calls nobody.
                _ => return None,
            }
        }
        CfaRule::Expression(program) => match expression(*program)? {
            Address::Sp(offset) => Cfa::Sp(i32::try_from(offset).ok()?),
            Address::Bp(offset) => Cfa::Bp(i32::try_from(offset).ok()?),
            Address::StoredAtBp(offset) => Cfa::StoredAtBp(i32::try_from(offset).ok()?),
        },
    };
    let saved = match rule_for(FRAME_POINTER) {
        RegisterRule::Offset(offset) => Saved::AtCfa(i32::try_from(offset).ok()?),
        RegisterRule::Expression(program) => match expression(program)? {
            Address::Bp(offset) => Saved::AtBp(i32::try_from(offset).ok()?),
            _ => return None,
        },
        // Undefined: whoever needs it next will not find it, and its reads are checked.
        RegisterRule::SameValue | RegisterRule::Undefined => Saved::Unchanged,
        _ => return None,
    };
    Rule::new(cfa, saved)
}

/// Room for evaluating unwind data without the heap: x86-64 has 17 registers to describe.
struct OnStack;

impl UnwindContextStorage<usize> for OnStack {
    type Rules = [(Register, RegisterRule<usize>); 24];
    type Stack = [UnwindTableRow<usize, Self>; 4];
}
