; Worker threads that run parts of the module's parallel loops: see thread_pool.py.
;
; A launch has more parts than there are threads. Its caller takes parts from the front and its
; workers take them from the back, so that each finds in its cache what it worked on before. The
; caller waits only for parts that have been taken. A worker may leave a launch and join it again.
;
; TVM links this file into the module of kernels, where functions end up inlined, and drops them.
; Those whose addresses are needed, `looplift_launch`, `_help` and `_stop`, are therefore functions
; of the module of kernels, which call the ones here.

%timespec = type { i64, i64 } ; seconds, nanoseconds
%environment = type { ptr, i32 } ; TVMParallelGroupEnv: nothing for us, and the number of parts
%item_time = type { ptr, i64 } ; the function of a loop, and nanoseconds

@__TVMBackendParallelLaunch = external global ptr
@__TVMFFIErrorSetRaisedFromCStr = external global ptr

@looplift.has_caller = internal global i32 0 ; whether one runs a loop with the pool
@looplift.threads = internal global i32 0 ; how many threads may work, with the caller
; The number of items of the next launch, or of another loop if two callers race: any positive
; number is right.
@looplift.next_items = internal global i64 1
; Several loops may share a place. It has the one that was launched last, and how long an item took.
@looplift.item_times = internal global [512 x %item_time] zeroinitializer
@looplift.started = internal global i32 0 ; how many workers there are
@looplift.most_workers = internal global i32 255 ; fewer if the system has refused one
@looplift.workers = internal global [255 x i64] zeroinitializer ; their pthread_t
@looplift.process = internal global i32 0 ; the process that has them: a fork of it has none
@looplift.caller_cpu = internal global i32 -1 ; where no worker may run
@looplift.cpus = internal global [16 x i64] zeroinitializer, align 8 ; where they may, by bit
@looplift.is_on_one_cpu = internal global i32 0 ; whether the process may use only the caller's

; Times are in nanoseconds.
@looplift.parts_of_thread = private constant i32 8 ; on two threads, the last part is a sixteenth
@looplift.most_parts_of_thread = private constant i32 256
@looplift.longest_part = private constant i64 100000 ; if longer, a loop is divided further
; A longer part may fit into no turn: it is run at any time.
@looplift.longest_fitting_part = private constant i64 2000000
; When a thread sleeps, Linux moves others to its core.
@looplift.caller_spin = private constant i64 1000000
@looplift.worker_spin = private constant i64 1000000 ; longer than most pauses between two loops

; A launch: read by workers that have a slot.
@looplift.lambda = internal global ptr null
@looplift.data = internal global ptr null
@looplift.parts = internal global i32 0
@looplift.failed = internal global i32 0 ; a part that failed, or -1

; Hints for workers without a slot, which may be of another launch.
@looplift.part_time = internal global i64 0 ; how long a part will take, judging by the last launch
@looplift.wake_time = internal global i64 0 ; when sleeping workers were woken; 0 if they were not

; What threads wait for or change together, each in cache lines of its own.
@looplift.taken = internal global i64 0, align 128 ; parts: from the back << 32 | from the front
@looplift.slots = internal global i32 0, align 128 ; free << 16 | workers at work; closed if < 0
@looplift.launches = internal global i32 0, align 128 ; how many there have been
@looplift.sleepers = internal global i32 0, align 128 ; workers that sleep until the next launch
@looplift.caller_sleeps = internal global i32 0, align 128 ; until no worker is at work
@looplift.is_stopping = internal global i32 0

@looplift.error_kind = private constant [13 x i8] c"RuntimeError\00"
@looplift.error = private constant [39 x i8] c"A thread failed in a part of the loop.\00"

declare i32 @clock_gettime(i32, ptr)
declare i32 @clock_getres(i32, ptr)
declare i64 @syscall(i64, ...)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i32 @pthread_setaffinity_np(i64, i64, ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_getcpu()
declare i32 @getpid()
declare i32 @llvm.smin.i32(i32, i32)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.vector.reduce.or.v16i64(<16 x i64>)

declare protected i32 @looplift_launch(ptr, ptr, i32)
declare protected i32 @looplift_help(ptr)
declare protected i32 @looplift_stop()

; Joins the workers before the code is unloaded.
@llvm.global_dtors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @looplift_stop, ptr null }]

; Nanoseconds of CLOCK_MONOTONIC.
define i64 @looplift_now() alwaysinline {
  %now = call i64 @looplift_clock(i32 1)
  ret i64 %now
}

define i64 @looplift_clock(i32 %clock) alwaysinline {
  %time = alloca %timespec, align 8
  %status = call i32 @clock_gettime(i32 %clock, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %nanoseconds_place = getelementptr %timespec, ptr %time, i32 0, i32 1
  %nanoseconds = load i64, ptr %nanoseconds_place, align 8
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %nanoseconds
  ret i64 %now
}

; FUTEX_WAIT_PRIVATE: sleeps until woken, unless the word has another value.
define void @looplift_sleep(ptr %word, i32 %value) alwaysinline {
  %call = load i64, ptr @looplift.futex, align 8
  %status = call i64 (i64, ...) @syscall(i64 %call, ptr %word, i32 128, i32 %value, ptr null, ptr null, i32 0)
  ret void
}

; FUTEX_WAKE_PRIVATE
define void @looplift_wake(ptr %word, i32 %count) alwaysinline {
  %call = load i64, ptr @looplift.futex, align 8
  %status = call i64 (i64, ...) @syscall(i64 %call, ptr %word, i32 129, i32 %count, ptr null, ptr null, i32 0)
  ret void
}

; Lets the next parallel loop, of so many items, use so many threads. Returns how many it will use:
; one for numbers of items near the limit of an int32, in which TVM divides them into parts.
define i32 @looplift_use_threads(i32 %wanted, i64 %items) alwaysinline {
  %is_divided = icmp sle i64 %items, 1073741824
  %most_threads = select i1 %is_divided, i32 256, i32 1
  %threads = call i32 @llvm.smin.i32(i32 %wanted, i32 %most_threads)
  %some_items = call i64 @llvm.smax.i64(i64 %items, i64 1)
  store atomic i32 %threads, ptr @looplift.threads monotonic, align 4
  store atomic i64 %some_items, ptr @looplift.next_items monotonic, align 8
  store atomic ptr @looplift_launch, ptr @__TVMBackendParallelLaunch monotonic, align 8
  ret i32 %threads
}

; Runs parts until none is left, or until the next, if it took as long as the last, would end after
; `until`. `unit` is 1 for the caller, 1 << 32 for a worker. Returns how many parts it has run, or
; -1 if it stopped because of the time.
define i64 @looplift_take_parts(i64 %unit, i64 %until) alwaysinline {
start:
  %environment = alloca %environment, align 8
  %lambda = load ptr, ptr @looplift.lambda, align 8
  %data = load ptr, ptr @looplift.data, align 8
  %parts = load i32, ptr @looplift.parts, align 4
  %last = sub i32 %parts, 1
  %wide_parts = zext i32 %parts to i64
  store ptr null, ptr %environment, align 8
  %parts_place = getelementptr %environment, ptr %environment, i32 0, i32 1
  store i32 %parts, ptr %parts_place, align 8
  %is_caller = icmp eq i64 %unit, 1
  %no_limit = load i64, ptr @looplift.no_limit, align 8
  %has_limit = icmp ne i64 %until, %no_limit
  %start_time = call i64 @looplift_now()
  br label %next

next:
  %part_start = phi i64 [ %start_time, %start ], [ %part_start, %look ], [ %now, %look_at_clock ]
  %run_before = phi i64 [ 0, %start ], [ %run_then, %look ], [ %run_then, %look_at_clock ]
  %taken = atomicrmw add ptr @looplift.taken, i64 %unit monotonic, align 8
  %front = and i64 %taken, 4294967295
  %back = lshr i64 %taken, 32
  %sum = add i64 %front, %back
  %is_left = icmp ult i64 %sum, %wide_parts
  br i1 %is_left, label %run, label %end

run:
  %from_front = trunc i64 %front to i32
  %from_back = trunc i64 %back to i32
  %counted_back = sub i32 %last, %from_back
  %part = select i1 %is_caller, i32 %from_front, i32 %counted_back
  %status = call i32 %lambda(i32 %part, ptr %environment, ptr %data)
  %is_ok = icmp eq i32 %status, 0
  br i1 %is_ok, label %look, label %fail

fail:
  store atomic i32 %part, ptr @looplift.failed monotonic, align 4
  br label %look

look:
  %run_then = add i64 %run_before, 1
  br i1 %has_limit, label %look_at_clock, label %next

look_at_clock:
  %now = call i64 @looplift_now()
  %took = sub i64 %now, %part_start
  %next_end = add i64 %now, %took
  %fits = icmp sle i64 %next_end, %until
  br i1 %fits, label %next, label %end

end:
  %run_in_all = phi i64 [ %run_before, %next ], [ -1, %look_at_clock ]
  ret i64 %run_in_all
}

; Where the time of an item of this loop is kept.
define ptr @looplift_item_time_place(ptr %lambda) alwaysinline {
  %address = ptrtoint ptr %lambda to i64
  %aligned = lshr i64 %address, 4
  %index = and i64 %aligned, 511
  %place = getelementptr [512 x %item_time], ptr @looplift.item_times, i64 0, i64 %index
  ret ptr %place
}

; How long an item of a loop took in its last launch; 0 if that is not known.
define i64 @looplift_item_time(ptr %place, ptr %lambda) alwaysinline {
  %time_place = getelementptr %item_time, ptr %place, i32 0, i32 1
  %last_lambda = load ptr, ptr %place, align 8
  %last_time = load i64, ptr %time_place, align 8
  %is_same = icmp eq ptr %last_lambda, %lambda
  %time = select i1 %is_same, i64 %last_time, i64 0
  ret i64 %time
}

; How many items a part has: an eighth of a thread's, or fewer if those would take too long.
define i64 @looplift_items_of_part(i64 %items, i32 %threads, i64 %item_time) alwaysinline {
  %parts_of_thread = load i32, ptr @looplift.parts_of_thread, align 4
  %parts = mul i32 %threads, %parts_of_thread
  %wide_parts = sext i32 %parts to i64
  %even = call i64 @looplift_ceil_div(i64 %items, i64 %wide_parts)
  %most_parts_of_thread = load i32, ptr @looplift.most_parts_of_thread, align 4
  %most_parts = mul i32 %threads, %most_parts_of_thread
  %wide_most = sext i32 %most_parts to i64
  %fewest = call i64 @looplift_ceil_div(i64 %items, i64 %wide_most)
  %longest_part = load i64, ptr @looplift.longest_part, align 8
  %some_time = call i64 @llvm.smax.i64(i64 %item_time, i64 1)
  %short = udiv i64 %longest_part, %some_time
  %few = call i64 @llvm.smax.i64(i64 %short, i64 %fewest)
  %items_of_part = call i64 @llvm.smin.i64(i64 %even, i64 %few)
  ret i64 %items_of_part
}

; Keeps how long an item took, by the time in which the caller ran its parts. If the caller lost its
; core meanwhile, the next launch has needlessly many parts.
define void @looplift_note_time(ptr %place, ptr %lambda, i64 %passed, i64 %parts, i64 %items_of_part)
    alwaysinline {
start:
  %has_run = icmp ne i64 %parts, 0
  br i1 %has_run, label %note, label %end

note:
  %items = mul i64 %parts, %items_of_part
  %item_time = udiv i64 %passed, %items
  %time_place = getelementptr %item_time, ptr %place, i32 0, i32 1
  store ptr %lambda, ptr %place, align 8
  store i64 %item_time, ptr %time_place, align 8
  br label %end

end:
  ret void
}

; Does what TVMBackendParallelLaunch does. Returns 0, or -1 with an error raised.
define i32 @looplift_run_parts(ptr %lambda, ptr %data) alwaysinline {
start:
  %environment = alloca %environment, align 8
  store ptr null, ptr %environment, align 8
  %parts_place = getelementptr %environment, ptr %environment, i32 0, i32 1
  %threads = load atomic i32, ptr @looplift.threads monotonic, align 4
  %are_many = icmp sgt i32 %threads, 1
  br i1 %are_many, label %enter, label %alone

enter: ; Someone else may have the pool: another thread of the program, or a loop around this one.
  %exchanged = cmpxchg ptr @looplift.has_caller, i32 0, i32 1 acquire monotonic, align 4
  %is_free = extractvalue { i32, i1 } %exchanged, 1
  br i1 %is_free, label %open, label %alone

alone:
  store i32 1, ptr %parts_place, align 8
  %status_alone = call i32 %lambda(i32 0, ptr %environment, ptr %data)
  ret i32 %status_alone

open:
  call void @looplift_forget_parent()
  call void @looplift_leave_cpu()
  %is_on_one_cpu = load i32, ptr @looplift.is_on_one_cpu, align 4
  %has_others = icmp eq i32 %is_on_one_cpu, 0
  br i1 %has_others, label %divide, label %give_back

give_back:
  store atomic i32 0, ptr @looplift.has_caller release, align 4
  br label %alone

divide:
  %items = load atomic i64, ptr @looplift.next_items monotonic, align 8
  %time_place = call ptr @looplift_item_time_place(ptr %lambda)
  %item_time = call i64 @looplift_item_time(ptr %time_place, ptr %lambda)
  %items_of_part = call i64 @looplift_items_of_part(i64 %items, i32 %threads, i64 %item_time)
  %wide_parts = call i64 @looplift_ceil_div(i64 %items, i64 %items_of_part)
  %parts = trunc i64 %wide_parts to i32
  %part_time = mul i64 %item_time, %items_of_part
  %busy_threads = call i32 @llvm.smin.i32(i32 %threads, i32 %parts)
  %workers = sub i32 %busy_threads, 1
  call void @looplift_start_workers(i32 %workers)
  store ptr %lambda, ptr @looplift.lambda, align 8
  store ptr %data, ptr @looplift.data, align 8
  store i32 %parts, ptr @looplift.parts, align 4
  store atomic i64 %part_time, ptr @looplift.part_time monotonic, align 8
  store atomic i32 -1, ptr @looplift.failed monotonic, align 4
  store atomic i64 0, ptr @looplift.taken monotonic, align 8
  %free_slots = shl i32 %workers, 16
  store atomic i32 %free_slots, ptr @looplift.slots release, align 4
  %launches = atomicrmw add ptr @looplift.launches, i32 1 seq_cst, align 4
  ; A worker counts itself as a sleeper before it looks for a launch for the last time.
  %sleepers = load atomic i32, ptr @looplift.sleepers seq_cst, align 4
  %is_any_asleep = icmp ne i32 %sleepers, 0
  br i1 %is_any_asleep, label %wake, label %work

wake:
  %wake_time = call i64 @looplift_now()
  ; The time at which they were woken first, if they still sleep.
  %first = cmpxchg ptr @looplift.wake_time, i64 0, i64 %wake_time monotonic monotonic, align 8
  call void @looplift_wake(ptr @looplift.launches, i32 %workers)
  br label %work

work:
  %no_limit = load i64, ptr @looplift.no_limit, align 8
  %start_time = call i64 @looplift_now()
  %own_parts = call i64 @looplift_take_parts(i64 1, i64 %no_limit)
  %end_time = call i64 @looplift_now()
  %passed = sub i64 %end_time, %start_time
  call void @looplift_note_time(ptr %time_place, ptr %lambda, i64 %passed, i64 %own_parts, i64 %items_of_part)
  %slots = atomicrmw or ptr @looplift.slots, i32 -2147483648 seq_cst, align 4
  %at_work = and i32 %slots, 65535
  %is_done = icmp eq i32 %at_work, 0
  br i1 %is_done, label %end, label %wait

wait:
  %wait_start = call i64 @looplift_now()
  br label %spin

spin:
  %slots_then = load atomic i32, ptr @looplift.slots acquire, align 4
  %still_at_work = and i32 %slots_then, 65535
  %is_over = icmp eq i32 %still_at_work, 0
  br i1 %is_over, label %end, label %spin_on

spin_on:
  %now = call i64 @looplift_now()
  %waited = sub i64 %now, %wait_start
  %caller_spin = load i64, ptr @looplift.caller_spin, align 8
  %is_short = icmp slt i64 %waited, %caller_spin
  br i1 %is_short, label %spin, label %fall_asleep

fall_asleep:
  store atomic i32 1, ptr @looplift.caller_sleeps seq_cst, align 4
  br label %check

check:
  %slots_now = load atomic i32, ptr @looplift.slots seq_cst, align 4
  %left_at_work = and i32 %slots_now, 65535
  %is_none_left = icmp eq i32 %left_at_work, 0
  br i1 %is_none_left, label %wake_up, label %sleep

sleep:
  call void @looplift_sleep(ptr @looplift.slots, i32 %slots_now)
  br label %check

wake_up:
  store atomic i32 0, ptr @looplift.caller_sleeps seq_cst, align 4
  br label %end

end:
  %failed = load atomic i32, ptr @looplift.failed monotonic, align 4
  %is_ok = icmp slt i32 %failed, 0
  br i1 %is_ok, label %leave, label %fail

fail: ; An error belongs to the thread that raised it: the caller runs the part to raise its own.
  store i32 %parts, ptr %parts_place, align 8
  %again = call i32 %lambda(i32 %failed, ptr %environment, ptr %data)
  %is_raised = icmp ne i32 %again, 0
  br i1 %is_raised, label %leave, label %raise

raise: ; It succeeded this time, but what it has done twice may not be what it does once.
  %set_raised = load ptr, ptr @__TVMFFIErrorSetRaisedFromCStr, align 8
  call void %set_raised(ptr @looplift.error_kind, ptr @looplift.error)
  br label %leave

leave:
  %status = phi i32 [ 0, %end ], [ -1, %fail ], [ -1, %raise ]
  store atomic i32 0, ptr @looplift.has_caller release, align 4
  ret i32 %status
}

; A forked process has the variables of its parent, but not its workers.
define void @looplift_forget_parent() alwaysinline {
start:
  %process = load i32, ptr @looplift.process, align 4
  %this_process = call i32 @getpid()
  %is_same = icmp eq i32 %process, %this_process
  br i1 %is_same, label %end, label %forget

forget:
  store i32 %this_process, ptr @looplift.process, align 4
  store i32 0, ptr @looplift.started, align 4
  store i32 255, ptr @looplift.most_workers, align 4
  store atomic i32 0, ptr @looplift.sleepers seq_cst, align 4
  br label %end

end:
  ret void
}

; Starts workers until there are so many, or until the system refuses one. They take no signals of
; the program.
define void @looplift_start_workers(i32 %wanted) alwaysinline {
start:
  %signals = alloca [16 x i64], align 8 ; sigset_t
  %all_signals = alloca [16 x i64], align 8
  %started_before = load i32, ptr @looplift.started, align 4
  %most = load i32, ptr @looplift.most_workers, align 4
  %allowed = call i32 @llvm.smin.i32(i32 %wanted, i32 %most)
  %is_enough = icmp sge i32 %started_before, %allowed
  br i1 %is_enough, label %end, label %block

block:
  call void @llvm.memset.p0.i64(ptr %all_signals, i8 -1, i64 128, i1 false)
  %blocked = call i32 @pthread_sigmask(i32 2, ptr %all_signals, ptr %signals) ; SIG_SETMASK
  br label %create

create:
  %started = phi i32 [ %started_before, %block ], [ %more, %count ]
  %wide = sext i32 %started to i64
  %place = getelementptr [255 x i64], ptr @looplift.workers, i64 0, i64 %wide
  %status = call i32 @pthread_create(ptr %place, ptr null, ptr @looplift_help, ptr null)
  %is_created = icmp eq i32 %status, 0
  br i1 %is_created, label %count, label %note_refusal

count:
  %more = add i32 %started, 1
  store i32 %more, ptr @looplift.started, align 4
  %is_one_left = icmp slt i32 %more, %allowed
  br i1 %is_one_left, label %create, label %unblock

note_refusal:
  store i32 %started, ptr @looplift.most_workers, align 4
  br label %unblock

unblock:
  store i32 -1, ptr @looplift.caller_cpu, align 4
  call void @looplift_leave_cpu()
  %unblocked = call i32 @pthread_sigmask(i32 2, ptr %signals, ptr null)
  br label %end

end:
  ret void
}

; Keeps workers off the caller's core. When all cores are busy, Linux wakes a thread on its waker's
; core, where a worker would compete with the caller.
define void @looplift_leave_cpu() alwaysinline {
start:
  %cpu = call i32 @sched_getcpu()
  %known = load i32, ptr @looplift.caller_cpu, align 4
  %is_known = icmp eq i32 %cpu, %known
  %is_beyond = icmp ugt i32 %cpu, 1023
  %stays = or i1 %is_known, %is_beyond
  br i1 %stays, label %end, label %move

move:
  %status = call i32 @sched_getaffinity(i32 0, i64 128, ptr @looplift.cpus)
  %is_answered = icmp eq i32 %status, 0
  %word = lshr i32 %cpu, 6
  %bit = and i32 %cpu, 63
  %wide_word = zext i32 %word to i64
  %wide_bit = zext i32 %bit to i64
  %place = getelementptr i64, ptr @looplift.cpus, i64 %wide_word
  %one = shl i64 1, %wide_bit
  %others = xor i64 %one, -1
  %before = load i64, ptr %place, align 8
  %after = and i64 %before, %others
  store i64 %after, ptr %place, align 8
  %cpus = load <16 x i64>, ptr @looplift.cpus, align 8
  %all = call i64 @llvm.vector.reduce.or.v16i64(<16 x i64> %cpus)
  %is_none = icmp eq i64 %all, 0
  %is_on_one_cpu = and i1 %is_answered, %is_none
  %on_one_cpu = zext i1 %is_on_one_cpu to i32
  store i32 %on_one_cpu, ptr @looplift.is_on_one_cpu, align 4
  ; The process may be given other CPUs later.
  %known_cpu = select i1 %is_on_one_cpu, i32 -1, i32 %cpu
  store i32 %known_cpu, ptr @looplift.caller_cpu, align 4
  %started = load i32, ptr @looplift.started, align 4
  br i1 %is_on_one_cpu, label %end, label %next

next:
  %index = phi i32 [ 0, %move ], [ %next_index, %set ]
  %is_one = icmp slt i32 %index, %started
  br i1 %is_one, label %set, label %end

set:
  %wide = sext i32 %index to i64
  %worker_place = getelementptr [255 x i64], ptr @looplift.workers, i64 0, i64 %wide
  %worker = load i64, ptr %worker_place, align 8
  %set_status = call i32 @pthread_setaffinity_np(i64 %worker, i64 128, ptr @looplift.cpus)
  %next_index = add i32 %index, 1
  br label %next

end:
  ret void
}

; The time between two ticks of the clock.
define i64 @looplift_tick_length() alwaysinline {
  %resolution = alloca %timespec, align 8
  %nanoseconds_place = getelementptr %timespec, ptr %resolution, i32 0, i32 1
  store i64 0, ptr %nanoseconds_place, align 8
  %status = call i32 @clock_getres(i32 6, ptr %resolution) ; CLOCK_MONOTONIC_COARSE
  %length = load i64, ptr %nanoseconds_place, align 8
  %is_short = icmp ult i64 %length, 500000
  %is_long = icmp ugt i64 %length, 20000000
  %is_strange = or i1 %is_short, %is_long ; if something else than Linux answers
  %usual_length = select i1 %is_strange, i64 4000000, i64 %length
  ret i64 %usual_length
}

; What a worker does, when `worker_turns.ll` lets it.
define i32 @looplift_help_launches() alwaysinline {
start:
  %schedule = alloca %schedule, align 8
  %seen = alloca i32, align 4 ; launches
  store i32 0, ptr %seen, align 4
  %tick_length = call i64 @looplift_tick_length()
  %start_time = call i64 @looplift_now()
  %start_own_time = call i64 @looplift_clock(i32 3) ; CLOCK_THREAD_CPUTIME_ID
  call void @looplift_start_schedule(ptr %schedule, i64 %start_time, i64 %start_own_time, i64 %tick_length)
  br label %idle

idle:
  %idle_start = call i64 @looplift_now()
  %own_time = call i64 @looplift_clock(i32 3)
  %work_until = call i64 @looplift_work_until(ptr %schedule, i64 %idle_start, i64 %own_time)
  %is_turn_over = icmp sge i64 %idle_start, %work_until
  br i1 %is_turn_over, label %wait_for_tick, label %spin

wait_for_tick:
  %tick_end = call i64 @looplift_tick_end(ptr %schedule)
  br label %wait

wait:
  %waiting_time = call i64 @looplift_now()
  %is_before = icmp slt i64 %waiting_time, %tick_end
  br i1 %is_before, label %wait, label %next_turn

next_turn:
  %next_own_time = call i64 @looplift_clock(i32 3)
  call void @looplift_next_turn(ptr %schedule, i64 %waiting_time, i64 %next_own_time)
  br label %idle

spin:
  %launches = load atomic i32, ptr @looplift.launches acquire, align 4
  %seen_before = load i32, ptr %seen, align 4
  %is_new = icmp ne i32 %launches, %seen_before
  br i1 %is_new, label %go, label %spin_on

spin_on:
  %now = call i64 @looplift_now()
  %rested = sub i64 %now, %idle_start
  %worker_spin = load i64, ptr @looplift.worker_spin, align 8
  %is_short = icmp slt i64 %rested, %worker_spin
  br i1 %is_short, label %look_at_turn, label %sleep

look_at_turn:
  %is_in_turn = icmp slt i64 %now, %work_until
  br i1 %is_in_turn, label %spin, label %wait_for_tick

sleep:
  store atomic i64 0, ptr @looplift.wake_time monotonic, align 8
  %sleepers = atomicrmw add ptr @looplift.sleepers, i32 1 seq_cst, align 4
  call void @looplift_sleep(ptr @looplift.launches, i32 %seen_before)
  %sleepers_then = atomicrmw sub ptr @looplift.sleepers, i32 1 seq_cst, align 4
  %woken = call i64 @looplift_now()
  %woken_own_time = call i64 @looplift_clock(i32 3)
  %given_wake_time = load atomic i64, ptr @looplift.wake_time monotonic, align 8
  %is_unknown = icmp eq i64 %given_wake_time, 0
  %wake_time = select i1 %is_unknown, i64 %woken, i64 %given_wake_time
  call void @looplift_end_sleep(ptr %schedule, i64 %wake_time, i64 %woken, i64 %woken_own_time)
  br label %idle

go:
  %is_stopping = load atomic i32, ptr @looplift.is_stopping acquire, align 4
  %must_stop = icmp ne i32 %is_stopping, 0
  br i1 %must_stop, label %end, label %look_at_part

look_at_part:
  %join_time = call i64 @looplift_now()
  %part_time = load atomic i64, ptr @looplift.part_time monotonic, align 8
  %part_end = add i64 %join_time, %part_time
  %fits = icmp sle i64 %part_end, %work_until
  %longest_fitting_part = load i64, ptr @looplift.longest_fitting_part, align 8
  %is_long = icmp sgt i64 %part_time, %longest_fitting_part
  %may_join = or i1 %fits, %is_long
  br i1 %may_join, label %look_at_slots, label %wait_for_tick

look_at_slots:
  store i32 %launches, ptr %seen, align 4
  %slots_first = load atomic i32, ptr @looplift.slots acquire, align 4
  br label %try

try:
  %slots = phi i32 [ %slots_first, %look_at_slots ], [ %slots_found, %join ]
  %has_no_slot = icmp slt i32 %slots, 65536 ; negative if it is closed
  br i1 %has_no_slot, label %idle, label %join

join: ; one slot less, one worker more
  %slots_after = sub i32 %slots, 65535
  %exchanged = cmpxchg ptr @looplift.slots, i32 %slots, i32 %slots_after acq_rel acquire, align 4
  %slots_found = extractvalue { i32, i1 } %exchanged, 0
  %has_joined = extractvalue { i32, i1 } %exchanged, 1
  br i1 %has_joined, label %work, label %try

work:
  %worker_parts = call i64 @looplift_take_parts(i64 4294967296, i64 %work_until)
  %stops_early = icmp slt i64 %worker_parts, 0
  %change = select i1 %stops_early, i32 65535, i32 -1 ; one worker less, and its slot back
  %seen_launch = sub i32 %launches, 1
  %seen_after = select i1 %stops_early, i32 %seen_launch, i32 %launches ; it may join again
  store i32 %seen_after, ptr %seen, align 4
  %slots_before = atomicrmw add ptr @looplift.slots, i32 %change seq_cst, align 4
  %caller_sleeps = load atomic i32, ptr @looplift.caller_sleeps seq_cst, align 4
  %wakes = icmp ne i32 %caller_sleeps, 0
  br i1 %wakes, label %wake_caller, label %idle

wake_caller:
  call void @looplift_wake(ptr @looplift.slots, i32 1)
  br label %idle

end:
  ret i32 0
}

; Ends the workers and keeps the pool: loops that still come, at the end of a process, run alone.
define i32 @looplift_stop_workers() alwaysinline {
start:
  %had_caller = atomicrmw xchg ptr @looplift.has_caller, i32 1 acquire, align 4
  %is_free = icmp eq i32 %had_caller, 0
  br i1 %is_free, label %compare, label %end

compare:
  %process = load i32, ptr @looplift.process, align 4
  %this_process = call i32 @getpid()
  %is_same = icmp eq i32 %process, %this_process
  br i1 %is_same, label %stop, label %end

stop:
  %started = load i32, ptr @looplift.started, align 4
  store i32 0, ptr @looplift.started, align 4
  store atomic i32 1, ptr @looplift.is_stopping release, align 4
  %launches = atomicrmw add ptr @looplift.launches, i32 1 seq_cst, align 4
  call void @looplift_wake(ptr @looplift.launches, i32 %started)
  br label %next

next:
  %index = phi i32 [ 0, %stop ], [ %next_index, %join ]
  %is_one_left = icmp slt i32 %index, %started
  br i1 %is_one_left, label %join, label %end

join:
  %wide = sext i32 %index to i64
  %place = getelementptr [255 x i64], ptr @looplift.workers, i64 0, i64 %wide
  %worker = load i64, ptr %place, align 8
  %status = call i32 @pthread_join(i64 %worker, ptr null)
  %next_index = add i32 %index, 1
  br label %next

end:
  ret i32 0
}
