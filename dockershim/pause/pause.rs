//! The first process of a sandbox. It holds the sandbox's namespaces open, reaps what
//! is orphaned to it, and ends on SIGTERM or SIGINT.
//!
//! All signals are blocked and taken one by one: a process with pid 1 has signals
//! without a handler thrown away, but not blocked ones, so this needs no handlers.

#![no_std]
#![no_main]

use core::arch::{asm, global_asm};

const SIGINT: isize = 2;
const SIGTERM: isize = 15;
const SIGCHLD: isize = 17;
const SIG_BLOCK: usize = 0;
const WNOHANG: usize = 1;
const ALL_SIGNALS: u64 = u64::MAX;

#[cfg(target_arch = "x86_64")]
mod nr {
    pub const RT_SIGPROCMASK: usize = 14;
    pub const RT_SIGTIMEDWAIT: usize = 128;
    pub const WAIT4: usize = 61;
    pub const EXIT_GROUP: usize = 231;
}

#[cfg(target_arch = "aarch64")]
mod nr {
    pub const RT_SIGPROCMASK: usize = 135;
    pub const RT_SIGTIMEDWAIT: usize = 137;
    pub const WAIT4: usize = 260;
    pub const EXIT_GROUP: usize = 94;
}

// The kernel enters with the stack aligned, but as if by a jump; a Rust function
// expects to be called.
#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "call {run}", "ud2", run = sym run);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "bl {run}", "brk 1", run = sym run);

/// # Safety
/// The arguments must be right for system call `nr`.
#[cfg(target_arch = "x86_64")]
unsafe fn syscall(nr: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; it clobbers rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") nr as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// # Safety
/// The arguments must be right for system call `nr`.
#[cfg(target_arch = "aarch64")]
unsafe fn syscall(nr: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; it clobbers nothing else.
    unsafe {
        asm!("svc 0", in("x8") nr, inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, options(nostack));
    }
    result
}

extern "C" fn run() -> ! {
    let all = ALL_SIGNALS;
    let set = &raw const all as usize;
    let size = size_of::<u64>();
    // SAFETY: `set` points to a signal set of `size` bytes; the old set is not asked for.
    unsafe { syscall(nr::RT_SIGPROCMASK, SIG_BLOCK, set, 0, size) };
    loop {
        // SAFETY: `set` as above; neither details nor a time limit are asked for.
        match unsafe { syscall(nr::RT_SIGTIMEDWAIT, set, 0, 0, size) } {
            SIGINT | SIGTERM => exit(0),
            // One SIGCHLD may stand for many children.
            // SAFETY: any child; neither status nor usage are asked for.
            SIGCHLD => while unsafe { syscall(nr::WAIT4, usize::MAX, 0, WNOHANG, 0) } > 0 {},
            _ => {}
        }
    }
}

fn exit(code: usize) -> ! {
    loop {
        // SAFETY: takes a number and does not return.
        unsafe { syscall(nr::EXIT_GROUP, code, 0, 0, 0) };
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(101)
}
