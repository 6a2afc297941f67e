; When a worker works. Times are in nanoseconds, of CLOCK_MONOTONIC and, as `own`, of the worker's
; CPU.
;
; Linux takes a core from a thread that shares it when the clock ticks. A worker that is stopped in
; a part keeps the caller waiting until the next tick. So while it shares its core, a worker works
; in turns that end before a tick at which it may be stopped, and spins until that tick has passed.
; It does not sleep: only a thread that is ready to run keeps its claim to a share of the core.
;
; It shares its core if it loses the core for long, or if it is woken and the core is not soon its
; own.

; Chosen on two cores with Linux 6.18, whose clock ticks every 4 milliseconds, beside a thread of
; onnxruntime that spins.
@looplift.shortest_loss = private constant i64 1000000 ; threads of the system have a core for less
@looplift.longest_wake = private constant i64 300000 ; on a core of its own, a worker wakes in less
@looplift.recently = private constant i64 200000000 ; for so long, a sign of another thread counts
@looplift.shared_turns = private constant i64 2 ; after the last sign of another thread
@looplift.slice = private constant i64 1400000 ; Linux 6.18's on two cores; it is longer on more
@looplift.before_tick = private constant i64 100000 ; for a part that takes longer than expected
@looplift.after_tick = private constant i64 100000 ; for the tick itself
@looplift.no_limit = private constant i64 9223372036854775807

; the last look: time
; the last look: CPU time of the worker
; when the core was last found to be shared
; how many more turns share it
; the end of this turn
; the time between two ticks
%schedule = type { i64, i64, i64, i64, i64, i64 }

define i64 @looplift_ceil_div(i64 %whole, i64 %part) alwaysinline {
  %padded = add i64 %whole, %part
  %below = sub i64 %padded, 1
  %count = udiv i64 %below, %part
  ret i64 %count
}

define void @looplift_start_schedule(ptr %schedule, i64 %now, i64 %own, i64 %tick_length) alwaysinline {
  %shared_place = getelementptr %schedule, ptr %schedule, i32 0, i32 2
  %left_place = getelementptr %schedule, ptr %schedule, i32 0, i32 3
  %length_place = getelementptr %schedule, ptr %schedule, i32 0, i32 5
  store i64 -1000000000, ptr %shared_place, align 8 ; long ago
  store i64 0, ptr %left_place, align 8
  store i64 %tick_length, ptr %length_place, align 8
  call void @looplift_start_turn(ptr %schedule, i64 %now, i64 %own)
  ret void
}

; Starts a turn, which ends shortly before the first tick after a slice. Since 6.4, the ticks of
; Linux are at multiples of their distance.
define void @looplift_start_turn(ptr %schedule, i64 %now, i64 %own) alwaysinline {
  %own_place = getelementptr %schedule, ptr %schedule, i32 0, i32 1
  %end_place = getelementptr %schedule, ptr %schedule, i32 0, i32 4
  %length_place = getelementptr %schedule, ptr %schedule, i32 0, i32 5
  store i64 %now, ptr %schedule, align 8
  store i64 %own, ptr %own_place, align 8
  %length = load i64, ptr %length_place, align 8
  %since_tick = urem i64 %now, %length
  %last_tick = sub i64 %now, %since_tick
  %slice = load i64, ptr @looplift.slice, align 8
  %ticks = call i64 @looplift_ceil_div(i64 %slice, i64 %length)
  %longest = mul i64 %ticks, %length
  %end_tick = add i64 %last_tick, %longest
  %before_tick = load i64, ptr @looplift.before_tick, align 8
  %end = sub i64 %end_tick, %before_tick
  store i64 %end, ptr %end_place, align 8
  ret void
}

; Whether the worker lost its core since the last call. If it did, it shares it for the next turns.
define i1 @looplift_has_lost_core(ptr %schedule, i64 %now, i64 %own) alwaysinline {
start:
  %own_place = getelementptr %schedule, ptr %schedule, i32 0, i32 1
  %last_look = load i64, ptr %schedule, align 8
  %last_own = load i64, ptr %own_place, align 8
  store i64 %now, ptr %schedule, align 8
  store i64 %own, ptr %own_place, align 8
  %passed = sub i64 %now, %last_look
  %own_passed = sub i64 %own, %last_own
  %lost = sub i64 %passed, %own_passed
  %shortest_loss = load i64, ptr @looplift.shortest_loss, align 8
  %is_loss = icmp sgt i64 %lost, %shortest_loss
  br i1 %is_loss, label %share, label %end

share:
  %shared_place = getelementptr %schedule, ptr %schedule, i32 0, i32 2
  %left_place = getelementptr %schedule, ptr %schedule, i32 0, i32 3
  %shared_turns = load i64, ptr @looplift.shared_turns, align 8
  store i64 %now, ptr %shared_place, align 8
  store i64 %shared_turns, ptr %left_place, align 8
  br label %end

end:
  ret i1 %is_loss
}

; Returns when the worker must stop; the largest number if it need not.
define i64 @looplift_work_until(ptr %schedule, i64 %now, i64 %own) alwaysinline {
start:
  %is_loss = call i1 @looplift_has_lost_core(ptr %schedule, i64 %now, i64 %own)
  br i1 %is_loss, label %start_turn, label %answer

start_turn:
  call void @looplift_start_turn(ptr %schedule, i64 %now, i64 %own)
  br label %answer

answer:
  %left_place = getelementptr %schedule, ptr %schedule, i32 0, i32 3
  %end_place = getelementptr %schedule, ptr %schedule, i32 0, i32 4
  %left = load i64, ptr %left_place, align 8
  %shares = icmp sgt i64 %left, 0
  %end = load i64, ptr %end_place, align 8
  %no_limit = load i64, ptr @looplift.no_limit, align 8
  %until = select i1 %shares, i64 %end, i64 %no_limit
  ret i64 %until
}

; Returns when the tick after this turn has passed.
define i64 @looplift_tick_end(ptr %schedule) alwaysinline {
  %end_place = getelementptr %schedule, ptr %schedule, i32 0, i32 4
  %end = load i64, ptr %end_place, align 8
  %before_tick = load i64, ptr @looplift.before_tick, align 8
  %after_tick = load i64, ptr @looplift.after_tick, align 8
  %tick = add i64 %end, %before_tick
  %tick_end = add i64 %tick, %after_tick
  ret i64 %tick_end
}

; Starts the next turn, when the tick has passed, with the core or without.
define void @looplift_next_turn(ptr %schedule, i64 %now, i64 %own) alwaysinline {
  %left_place = getelementptr %schedule, ptr %schedule, i32 0, i32 3
  %left = load i64, ptr %left_place, align 8
  %left_after = sub i64 %left, 1
  store i64 %left_after, ptr %left_place, align 8
  %is_loss = call i1 @looplift_has_lost_core(ptr %schedule, i64 %now, i64 %own)
  call void @looplift_start_turn(ptr %schedule, i64 %now, i64 %own)
  ret void
}

; Starts a turn after a sleep that a launch ended at `wake_time`.
define void @looplift_end_sleep(ptr %schedule, i64 %wake_time, i64 %now, i64 %own) alwaysinline {
  %shared_place = getelementptr %schedule, ptr %schedule, i32 0, i32 2
  %left_place = getelementptr %schedule, ptr %schedule, i32 0, i32 3
  %shared_at = load i64, ptr %shared_place, align 8
  %left = load i64, ptr %left_place, align 8
  %wake = sub i64 %now, %wake_time
  %longest_wake = load i64, ptr @looplift.longest_wake, align 8
  %is_late = icmp sgt i64 %wake, %longest_wake
  %since = sub i64 %now, %shared_at
  %recently = load i64, ptr @looplift.recently, align 8
  %is_recent = icmp slt i64 %since, %recently
  %shares = or i1 %is_late, %is_recent
  %shared_turns = load i64, ptr @looplift.shared_turns, align 8
  %left_after = select i1 %shares, i64 %shared_turns, i64 %left
  %shared_after = select i1 %is_late, i64 %now, i64 %shared_at
  store i64 %left_after, ptr %left_place, align 8
  store i64 %shared_after, ptr %shared_place, align 8
  call void @looplift_start_turn(ptr %schedule, i64 %now, i64 %own)
  ret void
}
