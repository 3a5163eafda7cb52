/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An elastic slice: the gate of gate.S and gate.c; and elastic.go, move.go and suspension.go of the
 * enforcer, which moves the memory of the slice's process by the driver's checkpoint. README.md
 * says the protocol in words.
 *
 * The process has two threads that call the driver. Another slice wants the card for a while, which
 * has room for one of the two. Process and enforcer may be killed between any two steps.
 * run.sh holds the configurations; each BROKEN_... takes one rule away, and Spin must find out.
 */
#ifndef KILLS
#define KILLS 1 /* is the process killed, perhaps, before it ends? */
#endif
#ifndef ENFORCER_KILLS
#define ENFORCER_KILLS 1
#endif
#ifndef FAILS
#define FAILS 0 /* how often the driver says no, for no reason */
#endif
#ifndef STORE_FAILS
#define STORE_FAILS 0 /* how often nothing can be stored */
#endif
#ifndef TURNS
#define TURNS 1 /* how often the other slice wants the card */
#endif

#define NONE 0 /* not suspended */
#define SUSPENDING 1
#define SUSPENDED 2
#define RESUMING 3

#define RUNNING 0
#define LOCKED 1
#define CHECKPOINTED 2

/* ---- the slice's page: it outlives the enforcer ---- */
bool away;
byte calls; /* under way; both threads are of one lane */

/* ---- what is stored ---- */
byte stored;
bool forgotten, stored_other;

/* ---- the enforcer's memory: it dies with it ---- */
bool up = 1; /* it listens */
byte suspension;
bool waits; /* somebody wants the slice to return */
bool book = 1, book_other;

/* ---- the world ---- */
byte driver;             /* how the driver has the process */
bool on_card = 1, on_host, other_on_card;
byte inside, at_gate;    /* threads in a call of the driver, and that wait at the gate */
bool plain, dependent;   /* kernels that run; the dependent one ends once the other was launched */
bool launched;
bool other_wants, other_told;
bool killed, gone;       /* the process; gone: the kernel has taken back what it held */
byte exited, done;       /* threads that have left; that have made all of their calls */
bool over;               /* the other slice wants nothing more */

bool left; /* ghost: the slice is moved though a call is under way */

#define KERNELS (plain || dependent)

/* No call stands in the driver while the memory is away, but one that was left there; no kernel runs
 * then. The gate is shut as long as the driver has the process, and as the enforcer has the slice.
 * What is granted, and what is held, is never more than the card. Nothing is lost. */
#define HOLDS \
	assert(!(inside && driver == CHECKPOINTED && !killed) || left); \
	assert(!KERNELS || driver == RUNNING && on_card); \
	assert(driver == RUNNING || away); \
	assert(!up || away == (suspension != NONE)); \
	assert(!(book && book_other)); \
	assert(!(on_card && other_on_card)); \
	assert(killed || on_card != on_host)

/* ---- the process ---- */

/* A step of the process, which waits until it can be made. */
#define STEP(when, what) \
	if \
	:: atomic { !killed && (when) -> what; HOLDS } \
	:: killed -> goto died \
	fi

#if defined BROKEN_NO_BARRIER
bool buffered[2]; /* it has stored its count, which nobody else sees yet */
#define COUNT STEP(true, buffered[me] = 1)
#define UNCOUNT \
	STEP(true, \
		if \
		:: buffered[me] -> buffered[me] = 0 \
		:: else -> assert(calls); calls-- \
		fi)

/* A processor's store becomes visible whenever it likes. */
proctype stores()
{
end_idle:
	do
	:: atomic { buffered[0] && !killed -> buffered[0] = 0; calls++ }
	:: atomic { buffered[1] && !killed -> buffered[1] = 0; calls++ }
	:: killed -> break
	od
}
#elif defined BROKEN_NOT_LOCKED
#define COUNT STEP(true, seen = calls); STEP(true, calls = seen + 1; seen = 0)
#define UNCOUNT STEP(true, assert(calls); calls--)
#else
/* One locked operation, which is a barrier, too: the load that follows is later. */
#define COUNT STEP(true, calls++)
#define UNCOUNT STEP(true, assert(calls); calls--)
#endif

#define LOOK STEP(true, shut = away)

#ifdef BROKEN_ASK_ONCE
#define MAY_ASK !asked
#else
#define MAY_ASK true
#endif

/* It asks again and again; here, when that makes a difference. */
inline wait_at_gate()
{
	STEP(true, at_gate++);
	do
	:: atomic { !killed && !away -> at_gate--; asked = 0; break }
	:: atomic { !killed && away && up && suspension != NONE && !waits && MAY_ASK ->
#ifdef BROKEN_ASK_ONCE
		asked = 1;
#endif
		waits = 1
	   }
	:: killed -> goto died
	od
}

inline enter(me)
{
#ifdef BROKEN_LOOK_FIRST
	LOOK;
	if
	:: shut -> wait_at_gate()
	:: else
	fi;
	COUNT;
#else
	COUNT;
	LOOK;
	do
	:: shut ->
#ifndef BROKEN_KEEPS_COUNT
		UNCOUNT;
#endif
		wait_at_gate();
#ifndef BROKEN_KEEPS_COUNT
		COUNT;
#endif
#ifdef BROKEN_LOOK_ONCE
		shut = 0
#else
		LOOK
#endif
	:: else -> break
	od;
#endif
	STEP(true, inside++)
}

/* No call ends in a process that the driver has locked. */
inline leave(me, when)
{
	STEP(driver == RUNNING && (when), assert(on_card); inside--);
	UNCOUNT
}

/* Launches a kernel that waits for what the second thread launches, and waits for its end. */
proctype first()
{
	bool shut, asked;
	byte seen;

	enter(0);
	STEP(driver == RUNNING, dependent = 1);
	leave(0, true);
	enter(0);
	leave(0, !KERNELS);
	STEP(true, done++);
died:	atomic { killed -> shut = 0; asked = 0; seen = 0; exited++ }
}

proctype second()
{
	bool shut, asked;
	byte seen;

	enter(1);
	STEP(driver == RUNNING, plain = 1; launched = 1);
	leave(1, true);
	enter(1);
	leave(1, true);
	STEP(true, done++);
died:	atomic { killed -> shut = 0; asked = 0; seen = 0; exited++ }
}

proctype card()
{
end_idle:
	do
	:: atomic { plain && !killed -> plain = 0 }
	:: atomic { dependent && launched && !killed -> dependent = 0 }
	:: killed -> break
	od
}

/* The process ends, when its threads have or by SIGKILL; what it held the kernel takes back later.
 * Its lane stays as it was. */
proctype end()
{
#if KILLS
	if
	:: true -> goto kill
	:: true
	fi;
#endif
	done == 2;
kill:
	atomic { killed = 1; plain = 0; dependent = 0; HOLDS };
	atomic {
		exited == 2 -> /* its last thread has left */
		on_card = 0; on_host = 0; inside = 0; driver = RUNNING; gone = 1; HOLDS
	}
}

/* ---- the other slice ---- */

/* What it held may be on the card for a while after it has ended. */
proctype other()
{
	byte turns = TURNS;

	do
	:: turns > 0 ->
		turns--;
		other_wants = 1;
		other_told;
		atomic { other_on_card = 1; HOLDS };
		atomic { other_wants = 0; other_told = 0 }; /* it has ended */
		atomic { other_on_card = 0; HOLDS }
	:: else -> break
	od;
	over = 1
}

/* ---- the enforcer ---- */

#if defined BROKEN_UNHEARD || defined BROKEN_HEARD_ONCE
#define CALL_WAITS false
#elif defined BROKEN_HEARD_WHEN_AWAY
#define CALL_WAITS (calls && suspension == SUSPENDED && !gone)
#else
#define CALL_WAITS (calls && (suspension == SUSPENDED || suspension == RESUMING) && !gone)
#endif

/* What others are given, and who wants the slice to return: whatever its other half does. */
proctype admission()
{
end_idle:
	do
	:: atomic { up && other_wants && !book_other && !book -> book_other = 1; HOLDS }
	:: atomic { up && other_wants && book_other && !stored_other -> stored_other = 1; HOLDS }
	:: atomic { up && other_wants && stored_other && !other_told -> other_told = 1; HOLDS }
	:: atomic { up && !other_wants && stored_other -> stored_other = 0; HOLDS }
	:: atomic { up && !other_wants && !stored_other && book_other -> book_other = 0; HOLDS }
	/* A call that waits in the driver has nobody else who says so. */
	:: atomic { up && CALL_WAITS && !waits -> waits = 1 }
	/* Who waits at the gate says so again and again, unless it has ended. */
	:: atomic { up && waits && !CALL_WAITS && (!at_gate || killed) -> waits = 0 }
	:: up && over && !book_other && gone -> break
	od
}

#define DEATH atomic { kills > 0 -> kills--; goto dies }

/* One step of it, or its death before that. */
#define ACT(what) \
	if \
	:: atomic { what; HOLDS } \
	:: DEATH \
	fi

/* First on disk, then so. */
#define STORE(state, no) \
	if \
	:: stored = state \
	:: atomic { store_fails > 0 -> store_fails--; goto no } \
	:: DEATH \
	fi; \
	ACT(suspension = state)

/* What the driver is to do with a process that is so far; or it does not, and `no` is where to go
 * then. With a process that has ended all is well; one that is ending it says nothing of. */
#define DRIVER(from, when, what, no) \
	if \
	:: driver != from || gone \
	:: atomic { !killed && driver == from && (when) -> what; HOLDS } \
	:: atomic { driver == from && killed && !gone -> goto no } \
	:: atomic { driver == from && !killed && fails > 0 -> fails--; goto no } \
	:: DEATH \
	fi

/* It waits for the kernels that run, for a while. */
#ifdef BROKEN_LOCK_PATIENT
#define LOCK(no) DRIVER(RUNNING, !KERNELS, driver = LOCKED, no)
#else
#define LOCK(no) \
	if \
	:: !killed && KERNELS -> goto no \
	:: DRIVER(RUNNING, !KERNELS, driver = LOCKED, no) \
	fi
#endif
#define CHECKPOINT(no) DRIVER(LOCKED, true, driver = CHECKPOINTED; on_card = 0; on_host = 1, no)
/* A process for which there is no room is lost. */
#define RESTORE(no) \
	DRIVER(CHECKPOINTED, true, \
	       assert(!other_on_card); driver = LOCKED; on_card = 1; on_host = 0, no)
#define UNLOCK(no) DRIVER(LOCKED, true, driver = RUNNING, no)

#define OPEN suspension = NONE; away = 0; waits = 0; left = 0

#define IN_THE_WAY (other_wants && !book_other && book && suspension == NONE && !gone)

/* Who moves the slice, one move at a time. */
proctype enforcer()
{
	byte kills = ENFORCER_KILLS, fails = FAILS, store_fails = STORE_FAILS;
	bool busy;

end_idle:
	do
	:: atomic { IN_THE_WAY -> busy = 0 }; goto evict
	:: atomic { IN_THE_WAY -> busy = 1 }; goto evict
	:: waits && suspension != NONE && !gone && (book || !book_other) -> goto resume
	:: gone && !forgotten -> ACT(forgotten = 1)
	:: forgotten && (book || suspension != NONE) -> ACT(book = 0; suspension = NONE; away = 0)
	:: DEATH
	:: forgotten && !book && suspension == NONE && over -> break
	od;
	goto ends;

evict:
	ACT(suspension = SUSPENDING; away = 1);
	if
#ifdef BROKEN_NO_DRAIN
	:: true
#else
	:: !calls || gone
#ifndef BROKEN_DRAIN_PATIENT
	:: calls && !gone && !busy -> goto open
#endif
	/* It has worked for too long: the call is left to wait in the driver. */
#ifdef BROKEN_HEARD_ONCE
	:: atomic { calls && !gone && busy -> left = 1; waits = 1 }
#else
	:: atomic { calls && !gone && busy -> left = 1 }
#endif
#endif
	:: DEATH
	fi;
#ifndef BROKEN_STORED_AFTER
	STORE(SUSPENDING, open);
#endif
	LOCK(back);
	CHECKPOINT(back);
#ifdef BROKEN_STORED_AFTER
	STORE(SUSPENDING, back);
#endif
settle:
#ifdef BROKEN_GIVEN_FIRST
	ACT(book = 0);
#endif
	STORE(SUSPENDED, unsettled);
	ACT(book = 0);
	goto end_idle;

resume:
#ifndef BROKEN_NOT_ADMITTED
	if
	:: atomic { book || !book_other -> book = 1; HOLDS }
	:: !book && book_other -> goto end_idle
	:: DEATH
	fi;
#endif
#ifndef BROKEN_NOT_ASKED
	if /* the driver says what is free */
	:: driver != CHECKPOINTED || !other_on_card
	:: driver == CHECKPOINTED && other_on_card -> goto undo
	:: DEATH
	fi;
#endif
#ifndef BROKEN_STORED_LATE
	STORE(RESUMING, undo);
#endif
#ifdef BROKEN_OPEN_EARLY
	ACT(OPEN);
#endif
back:
	RESTORE(stay);
#ifdef BROKEN_STORED_LATE
	STORE(RESUMING, undo);
#endif
	UNLOCK(stay);
goes_on:
	if
	:: stored = NONE
	:: atomic { store_fails > 0 -> store_fails-- } /* the next enforcer finds that it runs */
	:: DEATH
	fi;
open:
	ACT(OPEN);
	goto end_idle;

undo:
	if
	:: suspension == SUSPENDED -> ACT(book = 0); goto end_idle
	:: else
	fi;
stay:	/* It is moved out again. */
#ifdef BROKEN_UNKNOWN_IS_AWAY
	if
	:: killed && !gone -> goto settle
	:: else
	fi;
#endif
	LOCK(between);
	CHECKPOINT(between);
	goto settle;
between:
	STORE(RESUMING, neither);
	goto end_idle;
unsettled: /* As it is not on disk it must not be. */
	RESTORE(neither);
	UNLOCK(neither);
	goto goes_on;
neither:
#ifdef BROKEN_GOES_ON_ANYHOW
	goto goes_on;
#else
	ACT(suspension = RESUMING); /* what is stored is no other to the next enforcer */
	goto end_idle;
#endif

dies:	/* And another one takes up what is stored. */
	atomic { up = 0; suspension = NONE; waits = 0; book = 0; book_other = 0; busy = 0 };
	atomic {
		suspension = (forgotten -> NONE : stored);
		book = !forgotten && stored != SUSPENDED;
		book_other = stored_other;
		HOLDS
	};
#if defined BROKEN_NOT_SHUT
	ACT(away = away && suspension != NONE);
#elif defined BROKEN_NOT_OPENED
	ACT(away = away || suspension != NONE);
#else
	ACT(away = (suspension != NONE));
#endif
	ACT(up = 1; left = left && away);
	if
	:: suspension == SUSPENDING || suspension == RESUMING -> goto resume
	:: else -> goto end_idle
	fi;
ends:	assert(!book)
}

init
{
	atomic {
		run first();
		run second();
		run card();
		run end();
		run other();
		run admission();
		run enforcer();
#ifdef BROKEN_NO_BARRIER
		run stores()
#endif
	}
}
