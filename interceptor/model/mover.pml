/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a process of an elastic slice moves its memory itself: mover.c and piece.c behind the gate of
 * gate.S, and mover/self.go and move.go of the enforcer, which tells it by struct ledger_move where
 * the memory is wanted. README.md says what is in it and what is not.
 *
 * The process has two threads. Each makes a piece, launches a kernel that uses it and runs on after
 * the call, and frees it. Process and enforcer may be killed between any two steps. run.sh holds the
 * configurations; each BROKEN_... takes one rule away, and Spin must find out.
 */
#ifndef KILLS
#define KILLS 0 /* is the process killed, perhaps, before it ends? */
#endif
#ifndef ENFORCER_KILLS
#define ENFORCER_KILLS 0
#endif
#ifndef TURNS
#define TURNS 1 /* how often the slice is to be evicted */
#endif
#ifndef LATE
#define LATE 0 /* how often the enforcer does not wait for an answer */
#endif
#ifndef FAILS
#define FAILS 0 /* how often a step of the mover fails, or there is no room for the return */
#endif
#ifndef CLOSES
#define CLOSES 0 /* may the slice be closed, or its time be over, while it is aside or on the way? */
#endif
#ifndef BUSY
#define BUSY 0 /* is it evicted also while a call is under way? */
#endif
#ifndef DEPENDS
#define DEPENDS 0 /* the first kernel ends once the second was launched */
#endif
#ifndef PARTIAL
#define PARTIAL 0 /* may a piece stay when the others move aside? */
#endif
#ifndef BATCH
#define BATCH 2 /* so many pieces are moved before they are waited for */
#endif
#ifndef NUMBERS
#define NUMBERS 16 /* that a want has, as LEDGER_WANT_NUMBER has it */
#endif
#ifndef THREADS
#define THREADS 2
#endif

/* enum ledger_place */
#define RUNNING 1
#define LOCKED 2
#define ASIDE 3
#define BETWEEN 4
#define BARE 5
#define PLACE(w) ((w) & 7)
#define NEXT(place) (((((want >> 3) + 1) % NUMBERS) << 3) | (place))

/* suspensions, as they are stored */
#define NONE 0
#define SUSPENDING 1
#define SUSPENDED 2
#define RESUMING 3

/* ---- the slice's page: it outlives the enforcer ---- */
bool away;
byte calls; /* under way; all threads are of one lane */
byte want = RUNNING, is = RUNNING, answered = RUNNING;
bool failure;

/* ---- what is stored ---- */
byte stored;

/* ---- the process's memory ---- */
bool noted[THREADS]; /* the block map has the piece */
bool contexts;       /* the lock of what is known of contexts is held */

/* ---- the device, and what is pinned ---- */
#define OUT 1
#define IN 2
bool mapped[THREADS], dev[THREADS], host[THREADS]; /* here, or there, is what was written last */
bool kernel[THREADS], waited[THREADS]; /* it runs; the mover waits for it */
byte copying[THREADS];

/* ---- the world ---- */
byte inside, at_gate;  /* threads in a call of the driver, and that wait at the gate */
bool closed;           /* who asks for the slice's return is told that it is gone */
bool launched;         /* the second kernel */
bool killed, gone;     /* the process; gone: the kernel has taken back what it held */
byte exited, done;     /* of its threads and the mover; threads that have made all of their calls */
bool ended;            /* the enforcer has nothing more to do */

#if THREADS == 2
#define KERNELS (kernel[0] || kernel[1])
#define WAITED (waited[0] || waited[1])
#define COPYING (copying[0] || copying[1])
#define MAPPED (mapped[0] || mapped[1])
#define EACH(what) what(0); what(1)
#else
#define KERNELS kernel[0]
#define WAITED waited[0]
#define COPYING copying[0]
#define MAPPED mapped[0]
#define EACH(what) what(0)
#endif
#define RESTS (answered == want && !failure && (PLACE(want) == LOCKED || PLACE(want) == ASIDE))

/* A kernel has its piece, as it was written last. What the program holds is on the device or in host
 * memory, and not stale. What is in use is not aside. */
#define PIECE_HOLDS(p) \
	assert(!kernel[p] || mapped[p] && dev[p]); \
	assert(!copying[p] || mapped[p]); \
	assert(!noted[p] || mapped[p] && dev[p] || host[p])
#define HOLDS \
	if \
	:: killed \
	:: else -> \
		EACH(PIECE_HOLDS); \
		assert(!RESTS || !inside && !KERNELS); \
		assert(is != ASIDE && is != BETWEEN || !inside && !KERNELS) \
	fi

/* ---- the program ---- */

/* A step of the process, which waits until it can be made. */
#define STEP(when, what) \
	if \
	:: atomic { !killed && (when) -> what; HOLDS } \
	:: atomic { killed -> goto died } \
	fi

/* mover_return(): it polls; here, when that makes a difference. */
inline bring_back()
{
	do
#ifdef BROKEN_RUNS_ALREADY
	:: atomic { !killed && is == RUNNING -> break }
	:: atomic {
		!killed && is != RUNNING && (PLACE(want) != RUNNING || want == answered) ->
		want = NEXT(RUNNING)
	   }
#else
	:: atomic {
		!killed && is == RUNNING && PLACE(want) == RUNNING && want == answered -> break
	   }
	:: atomic {
		!killed && (PLACE(want) != RUNNING || want == answered && is != RUNNING) ->
		want = NEXT(RUNNING)
	   }
#endif
	:: atomic { killed -> goto died }
	od
}

inline enter()
{
#ifdef BROKEN_LOOK_FIRST
	STEP(!away, skip);
	STEP(true, calls++; inside++);
#else
	STEP(true, calls++);
	do
	:: atomic { !killed && !away -> inside++; HOLDS; break } /* looked: nothing is between */
	:: atomic { !killed && away -> calls--; at_gate++ };
		if
		:: atomic { !killed && !away -> at_gate--; calls++ }
#if CLOSES
		:: atomic { !killed && away && closed -> at_gate-- };
			bring_back();
			STEP(true, calls++; inside++);
			break
#endif
		:: atomic { killed -> goto died }
		fi
	:: atomic { killed -> goto died }
	od
#endif
}

inline leave()
{
	STEP(true, inside--; calls--)
}

proctype thread(byte me)
{
	/* cuMemAlloc: allocate() of piece.c */
#ifndef BROKEN_MADE_OUTSIDE
	enter();
#endif
	STEP(true, mapped[me] = 1; dev[me] = 1);
	STEP(true, noted[me] = 1);
#ifndef BROKEN_MADE_OUTSIDE
	leave();
#endif
	/* cuLaunchKernel: it runs on when the call has returned. Before, it looks at its context. */
#ifdef BROKEN_WAITS_WITH_LOCK
	STEP(!contexts, skip);
#endif
	enter();
	STEP(true, assert(mapped[me] && dev[me]); kernel[me] = 1; launched = launched || me == 1);
	leave();
	/* cuMemFree: free_behind(). It had another look at the piece before. */
#ifdef BROKEN_FREED_OUTSIDE
	STEP(noted[me], skip);
#else
	enter();
	STEP(true, assert(noted[me] && mapped[me] && dev[me]));
#endif
#ifndef BROKEN_FREED_AT_ONCE
	STEP(!kernel[me], skip);
#endif
	STEP(true, noted[me] = 0);
	STEP(true, assert(mapped[me]); mapped[me] = 0; dev[me] = 0);
#ifndef BROKEN_FREED_OUTSIDE
	leave();
#endif
	STEP(true, done++);
died:	atomic { killed || done -> exited++ }
}

#define KERNEL_ENDS(p) \
	:: atomic { \
		kernel[p] && !killed && (!DEPENDS || p == 1 || launched) -> \
		assert(mapped[p] && dev[p]); \
		kernel[p] = 0; waited[p] = 0; host[p] = 0 /* it has written */ \
	   }
#define COPY_ENDS(p) \
	:: atomic { \
		copying[p] && !killed -> \
		assert(mapped[p]); \
		if \
		:: copying[p] == OUT -> host[p] = dev[p] \
		:: else -> dev[p] = host[p] \
		fi; \
		copying[p] = 0; HOLDS \
	   }

/* Kernels run, and copies are made, whenever the device likes. */
proctype card()
{
end_idle:
	do
	KERNEL_ENDS(0)
	COPY_ENDS(0)
#if THREADS == 2
	KERNEL_ENDS(1)
	COPY_ENDS(1)
#endif
	:: killed -> break
	od
}

/* The process ends, when its threads have or by SIGKILL; what it held the kernel takes back later.
 * Its lane stays as it was. */
#define TAKEN_BACK(p) \
	mapped[p] = 0; dev[p] = 0; host[p] = 0; kernel[p] = 0; copying[p] = 0; noted[p] = 0; \
	waited[p] = 0
proctype end()
{
#if KILLS
	if
	:: true -> goto kill
	:: done == THREADS
	fi;
#else
	done == THREADS;
#endif
kill:	killed = 1;
	atomic {
		exited == THREADS + 1 -> /* its last thread has left */
		EACH(TAKEN_BACK);
		inside = 0; at_gate = 0; gone = 1
	}
}

/* ---- the mover ---- */

#ifdef BROKEN_WAKE_LOST
bool asleep;
#define WANT(w) want = w; asleep = 0
#else
#define WANT(w) want = w
#endif

byte fails = FAILS; /* of it, and of the room on the device */

#define FAIL(where) :: atomic { !killed && fails > 0 -> fails--; failed = 1; goto where }
#define IF_CHANGED(where) :: atomic { !killed && want != w -> goto where }
#define IF_KILLED :: atomic { killed -> goto died }

#define LIST(p) listed[p] = noted[p]; aside[p] = 0
#define FORGET(p) listed[p] = 0; aside[p] = 0
#define WAIT_FOR(p) waited[p] = kernel[p]
#define TRIM(p) host[p] = 0
#if THREADS == 2
#define LISTED (listed[0] || listed[1])
#define ALL_THERE (THERE(0) && THERE(1))
#else
#define LISTED listed[0]
#define ALL_THERE THERE(0)
#endif
#define THERE(p) (!listed[p] || aside[p] == out || out && stays && p == THREADS - 1)
#define ANY(value) (listed[0] && aside[0] == value || listed[THREADS - 1] && aside[THREADS - 1] == value)
#define MOVED (out && !failed && want == w -> ASIDE : PLACE_OF_ALL)
#define PLACE_OF_ALL (!ANY(1) -> LOCKED : (!ANY(0) -> ASIDE : BETWEEN))

#ifdef BROKEN_BATCH_UNLOOKED
#define GOES_ON true
#else
#define GOES_ON (want == w)
#endif
/* One piece of move_all(): the copy is under way afterwards. */
#define START(p) \
	if \
	:: atomic { THERE(p) } \
	:: atomic { !THERE(p) && !killed && !GOES_ON -> goto finish } \
	:: atomic { !THERE(p) && !killed && GOES_ON && out -> \
		copying[p] = OUT; started[p] = 1; HOLDS } \
	:: atomic { !THERE(p) && !killed && GOES_ON && !out -> \
		assert(!mapped[p]); \
		mapped[p] = 1; dev[p] = 0; copying[p] = IN; started[p] = 1; HOLDS } \
	:: atomic { !THERE(p) && !killed && GOES_ON && fails > 0 -> fails--; FAILED_TO_START(p) } \
	IF_KILLED \
	fi

#ifdef BROKEN_FAILED_IS_DONE
#define FAILED_TO_START(p) aside[p] = out
#else
#define FAILED_TO_START(p) failed = 1; goto finish
#endif

/* The copies were waited for: what was not copied stays where it was. */
#ifdef BROKEN_UNMAPPED_ANYHOW
#define UNMAP(p) (out || !copied)
#else
#define UNMAP(p) (out == copied)
#endif
#define FINISH(p) \
	if \
	:: atomic { !started[p] } \
	:: atomic { started[p] && !killed -> \
		started[p] = 0; \
		if \
		:: UNMAP(p) -> assert(mapped[p] && !copying[p]); mapped[p] = 0; dev[p] = 0 \
		:: else \
		fi; \
		if \
		:: copied -> aside[p] = out \
		:: else \
		fi; \
		HOLDS } \
	IF_KILLED \
	fi

#if defined BROKEN_COPY_UNWAITED
#define COPIED(when) true
#else
#define COPIED(when) when
#endif
/* cuStreamSynchronize */
#define AWAIT_COPIES \
	if \
	:: atomic { !killed && COPIED(!COPYING) -> copied = 1 } \
	:: atomic { !killed && !COPYING && fails > 0 && (started[0] || started[THREADS - 1]) -> \
		fails--; failed = 1; copied = 0 } \
	IF_KILLED \
	fi

proctype mover()
{
	byte w;
	bool listed[THREADS], aside[THREADS], started[THREADS];
	bool out, stays, failed, copied;

idle:	/* (It sleeps on the futex, whose value is the whole word: no wake is lost.) */
	if
	:: atomic {
		!killed && want != answered ->
		w = want; out = (PLACE(w) == ASIDE);
		failed = 0;
#ifdef BROKEN_ANSWERED_FIRST
		failure = 0; answered = w;
#endif
		if
		:: is == RUNNING && (PLACE(w) == LOCKED || out) -> goto lock
		:: is == RUNNING && PLACE(w) != LOCKED && !out -> goto settle
		:: is != RUNNING -> goto move
		fi
	   }
#ifdef BROKEN_WAKE_LOST
	:: atomic { !killed && want == answered };
		STEP(true, asleep = 1);
		STEP(!asleep, skip);
		goto idle
#endif
	IF_KILLED
	fi;

lock:	/* lock_all() */
	if
	:: atomic { !killed && !away -> failed = 1; goto settle }
	:: atomic { !killed && away }
	IF_KILLED
	fi;
drain:
#ifndef BROKEN_NO_DRAIN
	if
	:: atomic { !killed && !calls }
	IF_CHANGED(idle)
	IF_KILLED
	fi;
#endif
	if
	IF_CHANGED(idle)
#ifdef BROKEN_WAITS_WITH_LOCK
	:: atomic { !killed && want == w && !contexts -> EACH(WAIT_FOR); contexts = 1 }
#else
	:: atomic { !killed && want == w -> EACH(WAIT_FOR) }
#endif
	FAIL(settle)
	IF_KILLED
	fi;
#ifndef BROKEN_WORK_UNWAITED
	STEP(!WAITED, contexts = 0);
#endif
#ifndef BROKEN_NO_SECOND_LOOK
	if
	:: atomic { !killed && calls -> goto drain }
	:: atomic { !killed && !calls }
	IF_KILLED
	fi;
#endif
#ifdef BROKEN_LIST_KEPT
	if
	:: LISTED -> goto publish
	:: else
	fi;
#endif
	if
	:: atomic { !killed -> EACH(LIST);
		if
		:: !LISTED -> failed = 1; goto settle /* too few */
		:: else
		fi }
	FAIL(settle)
	IF_KILLED
	fi;
publish:
	STEP(true, is = LOCKED);
#ifndef BROKEN_LOCKED_UNLOOKED
	/* What was seen for this want may not be so for the next one: the gate was open, perhaps. The
	 * enforcer wants something else before it looks where the memory is, and opens the gate. */
	if
	:: atomic { !killed && want != w -> is = RUNNING; EACH(FORGET); goto idle }
	:: atomic { !killed && want == w }
	IF_KILLED
	fi;
#endif

move:	/* move_all() */
#ifdef BROKEN_BETWEEN_STAYS
	if
	:: atomic { is == BETWEEN -> failed = 1; goto settle }
	:: atomic { is != BETWEEN }
	fi;
#endif
	if
	:: atomic { stays = 0 }
#if PARTIAL
	:: atomic { stays = 1 }
#endif
	fi;
	if
	:: atomic { ALL_THERE -> goto moved }
	:: else
	fi;
	START(0);
#if THREADS == 2
#if BATCH == 1
	AWAIT_COPIES;
	FINISH(0);
	if
	:: atomic { failed -> goto moved }
	:: atomic { !failed }
	fi;
#endif
	START(1);
#endif
finish:
	AWAIT_COPIES;
	FINISH(0);
#if THREADS == 2
	FINISH(1);
#endif
moved:
	STEP(true, is = MOVED);

settle:
	if
	:: atomic { !killed && is == LOCKED && (PLACE(w) == RUNNING || PLACE(w) == BARE) ->
		is = RUNNING;
#ifndef BROKEN_LIST_KEPT
		EACH(FORGET);
#endif
		HOLDS
	   }
	:: atomic { !killed && !(is == LOCKED && (PLACE(w) == RUNNING || PLACE(w) == BARE)) }
	IF_KILLED
	fi;
	if
#ifdef BROKEN_TRIMMED_EARLY
	:: atomic { !killed && PLACE(w) == BARE -> EACH(TRIM); HOLDS }
#else
	:: atomic { !killed && PLACE(w) == BARE && is == RUNNING -> EACH(TRIM); HOLDS }
#endif
	:: atomic { !killed && !(PLACE(w) == BARE && is == RUNNING) }
	IF_KILLED
	fi;
#ifndef BROKEN_ANSWERED_FIRST
#ifdef BROKEN_ANSWERS_NEWEST
	STEP(true, failure = failed);
	STEP(true, answered = want);
#else
	if
	IF_CHANGED(idle)
	:: atomic { !killed && want == w -> failure = failed }
	IF_KILLED
	fi;
	STEP(true, answered = w);
#endif
#endif
	goto idle;

died:	atomic {
		w = 0; out = 0; failed = 0; copied = 0;
		listed[0] = 0; aside[0] = 0; started[0] = 0;
		listed[THREADS - 1] = 0; aside[THREADS - 1] = 0; started[THREADS - 1] = 0;
		exited++
	}
}

/* ---- the enforcer ---- */

#define DEATH :: atomic { kills > 0 -> kills--; goto dies }

/* One step of it, or its death before that. */
#define ACT(what) \
	if \
	:: atomic { what; HOLDS } \
	DEATH \
	fi

/* proc.request() of mover/self.go: tell the process where its memory is wanted, and wait until it is there,
 * or `no`. What it says was done must be so. */
#define IS_AT(place) (is == place || place == BARE && is == RUNNING)
#if DEPENDS
#define IN_VAIN :: timeout -> goto
#else
#define IN_VAIN :: false -> goto
#endif
#ifdef BROKEN_DEATH_UNSEEN
#define DEAD false
#else
#define DEAD gone
#endif
#define GOES(place, no) \
	ACT(WANT(NEXT(place))); \
	if \
	:: atomic { DEAD } \
	:: atomic { !gone && answered == want && !failure -> assert(IS_AT(place)) } \
	:: atomic { !gone && answered == want && failure -> goto no } \
	:: atomic { !gone && answered != want && lates > 0 -> lates--; goto no } \
	IN_VAIN no \
	DEATH \
	fi

/* proc.selfState() of mover/self.go: is it moving its memory itself, or has it moved it? */
#define ITSELF \
	(is == ASIDE || is == BETWEEN || is == LOCKED || \
	 is == RUNNING && (PLACE(want) == LOCKED || PLACE(want) == ASIDE))

#define NOTHING_ASIDE(p) assert(!noted[p] || mapped[p] && dev[p] && !copying[p])
#define NOTHING_HERE(p) assert(!mapped[p] || PARTIAL && p == THREADS - 1)

proctype enforcer()
{
	byte kills = ENFORCER_KILLS, turns = TURNS, lates = LATE;

idle:
	do
	:: atomic { turns > 0 && stored == NONE && !gone -> turns--; goto evict }
	/* Who waits at the gate asks again and again. */
	:: atomic { at_gate && stored != NONE && !gone -> goto resume }
#if CLOSES
	/* It is released, or its time is over, in its turn: between two moves. */
	:: atomic { stored != NONE && !gone -> closed = 1; goto ends }
#endif
	DEATH
	:: atomic { gone -> goto ends }
	od;

evict:
	ACT(away = 1);
	if
	:: atomic { !calls || gone }
	:: atomic { calls && !gone -> goto open }
#if BUSY
	:: atomic { calls && !gone }
#endif
	DEATH
	fi;
#ifndef BROKEN_STORED_LATE
	ACT(stored = SUSPENDING);
#endif
	GOES(LOCKED, driver);
	GOES(ASIDE, driver);
settle:
	atomic {
		if
		:: gone
		:: else -> EACH(NOTHING_HERE)
		fi
	};
	ACT(stored = SUSPENDED);
	goto idle;

driver:	/* leaveToDriver(). What the driver does then is elastic.pml's; here it says no. */
	GOES(BARE, mute);
mute:
	if
	:: atomic { ITSELF && !gone }
	:: atomic { !ITSELF || gone -> goto goes_on }
	DEATH
	fi;

back:	/* moveBack() */
	if
	:: atomic { (is == ASIDE || is == BETWEEN) && !gone };
		GOES(LOCKED, stay)
	:: atomic { is != ASIDE && is != BETWEEN || gone }
	DEATH
	fi;
#ifdef BROKEN_OPENED_EARLY
	ACT(away = 0);
#endif
	if
	:: atomic { ITSELF && !gone };
		GOES(RUNNING, stay)
	:: atomic { !ITSELF || gone }
	DEATH
	fi;
goes_on:
	atomic {
		if
		:: gone
		:: else -> EACH(NOTHING_ASIDE)
		fi
	};
	ACT(stored = NONE);
open:
	ACT(away = 0);
	goto idle;

resume:	/* resumeAll() */
	if
	:: true
	:: atomic { fails > 0 && stored == SUSPENDED -> fails--; goto idle }
	:: atomic { fails > 0 && stored != SUSPENDED -> fails--; goto stay } /* no room */
	DEATH
	fi;
	ACT(stored = RESUMING);
	goto back;

stay:	/* It is moved out again. */
	if
	:: atomic { !ITSELF && !gone };
		GOES(LOCKED, neither)
	:: atomic { ITSELF || gone }
	DEATH
	fi;
	if
#ifdef BROKEN_ASIDE_UNANSWERED
	:: atomic { is == ASIDE && PLACE(want) == ASIDE || gone }
	:: atomic { !(is == ASIDE && PLACE(want) == ASIDE) && !gone };
#else
	:: atomic { is == ASIDE && PLACE(want) == ASIDE && answered == want || gone }
	:: atomic { !(is == ASIDE && PLACE(want) == ASIDE && answered == want) && !gone };
#endif
		GOES(ASIDE, neither)
	DEATH
	fi;
	goto settle;
neither:
	GOES(BARE, between);
between:
	ACT(stored = RESUMING);
	goto idle;

dies:	/* And another one takes up what is stored. */
	ACT(away = (stored != NONE));
	if
	:: atomic { stored == SUSPENDING || stored == RESUMING -> goto resume }
#if CLOSES
	:: atomic { stored != NONE && !gone -> closed = 1; goto ends } /* its time is over by now */
#endif
	:: atomic { stored == NONE || stored == SUSPENDED -> goto idle }
	fi;

ends:	atomic { ended = 1; kills = 0; turns = 0; lates = 0 }
}

init
{
	atomic {
		run thread(0);
#if THREADS == 2
		run thread(1);
#endif
		run card();
		run end();
		run mover();
		run enforcer();
	}
}

#ifdef LIVE
ltl gets_on { <> (ended && (killed || done == THREADS)) }
#endif
