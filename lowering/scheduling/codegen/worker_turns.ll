; When a worker works. Times are in nanoseconds, of CLOCK_MONOTONIC and, as `own`, of its own work.
;
; If it shares its core, it alternates turns of work and pauses of the same length: so it stays within
; its half of the core, and Linux seldom stops it in a part that the caller waits for. It expects to
; share its core for the next turns when it has lost the core for long, twice within a while, and again
; when it wakes from a long sleep within a while of that.

; Chosen on two cores with Linux 6.18, whose clock ticks every 4 milliseconds, beside a thread of
; onnxruntime that spins.
@looplift.turn = private constant i64 1500000 ; shorter than Linux lets a thread run at a stretch
@looplift.loss = private constant i64 1000000 ; longer than threads of the system have a core
@looplift.recently = private constant i64 200000000 ; tens of losses apart
@looplift.long_sleep = private constant i64 5000000 ; long enough for a run of another runtime
@looplift.shared_turns = private constant i64 4

; Of the last look, the time and the worker's own; the times of the last loss, of when the core was found
; to be shared, and of the start of this turn; how many more turns will share the core.
%schedule = type { i64, i64, i64, i64, i64, i64 }

define void @looplift_start_turn(ptr %schedule, i64 %now, i64 %own) alwaysinline {
  %own_place = getelementptr %schedule, ptr %schedule, i32 0, i32 1
  %start_place = getelementptr %schedule, ptr %schedule, i32 0, i32 4
  store i64 %now, ptr %schedule, align 8
  store i64 %own, ptr %own_place, align 8
  store i64 %now, ptr %start_place, align 8
  ret void
}

; Returns until when to work.
define i64 @looplift_work_until(ptr %schedule, i64 %now, i64 %own) alwaysinline {
start:
  %own_place = getelementptr %schedule, ptr %schedule, i32 0, i32 1
  %loss_place = getelementptr %schedule, ptr %schedule, i32 0, i32 2
  %shared_place = getelementptr %schedule, ptr %schedule, i32 0, i32 3
  %start_place = getelementptr %schedule, ptr %schedule, i32 0, i32 4
  %left_place = getelementptr %schedule, ptr %schedule, i32 0, i32 5
  %last_look = load i64, ptr %schedule, align 8
  %last_own = load i64, ptr %own_place, align 8
  store i64 %now, ptr %schedule, align 8
  store i64 %own, ptr %own_place, align 8
  %passed = sub i64 %now, %last_look
  %own_passed = sub i64 %own, %last_own
  %lost = sub i64 %passed, %own_passed
  %loss = load i64, ptr @looplift.loss, align 8
  %is_loss = icmp sgt i64 %lost, %loss
  br i1 %is_loss, label %note, label %answer

note:
  %last_loss = load i64, ptr %loss_place, align 8
  store i64 %now, ptr %loss_place, align 8
  %distance = sub i64 %now, %last_loss
  %recently = load i64, ptr @looplift.recently, align 8
  %is_second = icmp slt i64 %distance, %recently
  br i1 %is_second, label %share, label %answer

share:
  %turns_to_share = load i64, ptr @looplift.shared_turns, align 8
  store i64 %turns_to_share, ptr %left_place, align 8
  store i64 %now, ptr %shared_place, align 8
  br label %answer

answer:
  %left = load i64, ptr %left_place, align 8
  %shares = icmp sgt i64 %left, 0
  %turn_start = load i64, ptr %start_place, align 8
  %turn = load i64, ptr @looplift.turn, align 8
  %turn_end = add i64 %turn_start, %turn
  %until = select i1 %shares, i64 %turn_end, i64 9223372036854775807
  ret i64 %until
}

define void @looplift_end_turn(ptr %schedule) alwaysinline {
  %left_place = getelementptr %schedule, ptr %schedule, i32 0, i32 5
  %left = load i64, ptr %left_place, align 8
  %left_after = sub i64 %left, 1
  store i64 %left_after, ptr %left_place, align 8
  ret void
}

define void @looplift_end_sleep(ptr %schedule, i64 %slept, i64 %now) alwaysinline {
start:
  %shared_place = getelementptr %schedule, ptr %schedule, i32 0, i32 3
  %left_place = getelementptr %schedule, ptr %schedule, i32 0, i32 5
  %shared_at = load i64, ptr %shared_place, align 8
  %since = sub i64 %now, %shared_at
  %recently = load i64, ptr @looplift.recently, align 8
  %is_recent = icmp slt i64 %since, %recently
  %long_sleep = load i64, ptr @looplift.long_sleep, align 8
  %was_long = icmp sgt i64 %slept, %long_sleep
  %shares = and i1 %is_recent, %was_long
  br i1 %shares, label %share, label %end

share:
  %turns_to_share = load i64, ptr @looplift.shared_turns, align 8
  store i64 %turns_to_share, ptr %left_place, align 8
  br label %end

end:
  ret void
}
