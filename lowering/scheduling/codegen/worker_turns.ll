; When a worker works. Times are in nanoseconds, of CLOCK_MONOTONIC and, as `own`, of its own work.
;
; Linux takes a core from a thread that shares it when the clock ticks. A worker that is stopped in a
; part keeps the caller waiting until the next tick. So while it shares its core, a worker works in
; turns that end before a tick at which it may be stopped, and waits for that tick without a part.
;
; It shares its core if it loses the core for long, or if it is woken and the core is not soon its own.

; Chosen on two cores with Linux 6.18, whose clock ticks every 4 milliseconds, beside a thread of
; onnxruntime that spins.
@looplift.loss = private constant i64 1000000 ; longer than threads of the system have a core
@looplift.late = private constant i64 300000 ; longer than it takes to wake on a core of its own
@looplift.recently = private constant i64 200000000
@looplift.shared_turns = private constant i64 2 ; turns after the last sign of another thread
@looplift.stretch = private constant i64 2800000 ; how long Linux lets a thread run, rounded up to ticks
@looplift.before_tick = private constant i64 100000 ; longer than most parts
@looplift.after_tick = private constant i64 100000 ; longer than a tick takes

; Of the last look, the time and the worker's own; when its core was last found to be shared; how many
; more turns will share it; when this turn ends; the time of a tick, and the time between two ticks.
%schedule = type { i64, i64, i64, i64, i64, i64, i64 }

define void @looplift_start_schedule(ptr %schedule, i64 %tick, i64 %tick_length) alwaysinline {
  %shared_place = getelementptr %schedule, ptr %schedule, i32 0, i32 2
  %left_place = getelementptr %schedule, ptr %schedule, i32 0, i32 3
  %tick_place = getelementptr %schedule, ptr %schedule, i32 0, i32 5
  %length_place = getelementptr %schedule, ptr %schedule, i32 0, i32 6
  store i64 -1000000000, ptr %shared_place, align 8 ; long ago
  store i64 0, ptr %left_place, align 8
  store i64 %tick, ptr %tick_place, align 8
  store i64 %tick_length, ptr %length_place, align 8
  ret void
}

define void @looplift_start_turn(ptr %schedule, i64 %now, i64 %own) alwaysinline {
  %own_place = getelementptr %schedule, ptr %schedule, i32 0, i32 1
  %end_place = getelementptr %schedule, ptr %schedule, i32 0, i32 4
  %tick_place = getelementptr %schedule, ptr %schedule, i32 0, i32 5
  %length_place = getelementptr %schedule, ptr %schedule, i32 0, i32 6
  store i64 %now, ptr %schedule, align 8
  store i64 %own, ptr %own_place, align 8
  %tick = load i64, ptr %tick_place, align 8
  %length = load i64, ptr %length_place, align 8
  %since = sub i64 %now, %tick
  %beyond = urem i64 %since, %length
  %last_tick = sub i64 %now, %beyond
  ; The first tick at which Linux may stop the worker.
  %stretch = load i64, ptr @looplift.stretch, align 8
  %rounded = add i64 %stretch, %length
  %most = sub i64 %rounded, 1
  %part = urem i64 %most, %length
  %ticks = sub i64 %most, %part
  %end_tick = add i64 %last_tick, %ticks
  %before_tick = load i64, ptr @looplift.before_tick, align 8
  %end = sub i64 %end_tick, %before_tick
  store i64 %end, ptr %end_place, align 8
  ret void
}

; Returns whether the worker lost its core since the last look.
define i1 @looplift_look(ptr %schedule, i64 %now, i64 %own) alwaysinline {
start:
  %own_place = getelementptr %schedule, ptr %schedule, i32 0, i32 1
  %last_look = load i64, ptr %schedule, align 8
  %last_own = load i64, ptr %own_place, align 8
  store i64 %now, ptr %schedule, align 8
  store i64 %own, ptr %own_place, align 8
  %passed = sub i64 %now, %last_look
  %own_passed = sub i64 %own, %last_own
  %lost = sub i64 %passed, %own_passed
  %loss = load i64, ptr @looplift.loss, align 8
  %is_loss = icmp sgt i64 %lost, %loss
  br i1 %is_loss, label %share, label %end

share:
  call void @looplift_share(ptr %schedule, i64 %now)
  br label %end

end:
  ret i1 %is_loss
}

; Returns until when to work.
define i64 @looplift_work_until(ptr %schedule, i64 %now, i64 %own) alwaysinline {
start:
  %is_loss = call i1 @looplift_look(ptr %schedule, i64 %now, i64 %own)
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
  %until = select i1 %shares, i64 %end, i64 9223372036854775807
  ret i64 %until
}

define void @looplift_share(ptr %schedule, i64 %now) alwaysinline {
  %shared_place = getelementptr %schedule, ptr %schedule, i32 0, i32 2
  %left_place = getelementptr %schedule, ptr %schedule, i32 0, i32 3
  %turns_to_share = load i64, ptr @looplift.shared_turns, align 8
  store i64 %now, ptr %shared_place, align 8
  store i64 %turns_to_share, ptr %left_place, align 8
  ret void
}

; Returns until when to wait after a turn.
define i64 @looplift_wait_until(ptr %schedule) alwaysinline {
  %end_place = getelementptr %schedule, ptr %schedule, i32 0, i32 4
  %end = load i64, ptr %end_place, align 8
  %before_tick = load i64, ptr @looplift.before_tick, align 8
  %after_tick = load i64, ptr @looplift.after_tick, align 8
  %tick = add i64 %end, %before_tick
  %until = add i64 %tick, %after_tick
  ret i64 %until
}

; Starts the next turn, after the wait.
define void @looplift_end_turn(ptr %schedule, i64 %now, i64 %own) alwaysinline {
  %left_place = getelementptr %schedule, ptr %schedule, i32 0, i32 3
  %left = load i64, ptr %left_place, align 8
  %left_after = sub i64 %left, 1
  store i64 %left_after, ptr %left_place, align 8
  %is_loss = call i1 @looplift_look(ptr %schedule, i64 %now, i64 %own)
  call void @looplift_start_turn(ptr %schedule, i64 %now, i64 %own)
  ret void
}

; After a sleep without launches, which should have ended at `due`.
define void @looplift_end_sleep(ptr %schedule, i64 %due, i64 %now) alwaysinline {
start:
  %shared_place = getelementptr %schedule, ptr %schedule, i32 0, i32 2
  %left_place = getelementptr %schedule, ptr %schedule, i32 0, i32 3
  %late = sub i64 %now, %due
  %most = load i64, ptr @looplift.late, align 8
  %is_late = icmp sgt i64 %late, %most
  br i1 %is_late, label %share, label %compare

compare:
  %shared_at = load i64, ptr %shared_place, align 8
  %since = sub i64 %now, %shared_at
  %recently = load i64, ptr @looplift.recently, align 8
  %is_recent = icmp slt i64 %since, %recently
  br i1 %is_recent, label %share_again, label %end

share:
  call void @looplift_share(ptr %schedule, i64 %now)
  br label %end

share_again:
  %turns_to_share = load i64, ptr @looplift.shared_turns, align 8
  store i64 %turns_to_share, ptr %left_place, align 8
  br label %end

end:
  ret void
}
