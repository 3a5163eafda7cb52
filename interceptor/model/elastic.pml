/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A design, of which nothing is in the library: a slice whose memory is moved off the card while
 * its process is idle, and comes back with its next call. README.md says the protocol in words.
 *
 * The process has two threads that call the driver, and one, the evictor, that moves PIECES of
 * memory out and in. The daemon grants room; another slice wants some of it for a while. Either may
 * be killed between any two steps. run.sh holds the configurations; each BROKEN_... takes one
 * rule away, and Spin must find out.
 */
#ifndef PIECES
#define PIECES 2
#endif
#ifndef CARD
#define CARD 2 /* in pieces: the slice's own, so that the other has room only while that is away */
#endif
#ifndef KILLS
#define KILLS 1 /* is the process killed, perhaps, before it ends? */
#endif
#ifndef DAEMON_KILLS
#define DAEMON_KILLS 1
#endif
#ifndef TURNS
#define TURNS 1 /* how often the other slice wants room */
#endif

/* ---- memory of the process: it dies with it ---- */
bool closed;      /* the gate's word */
bool mark[2];     /* the thread is in a call that may touch what can be moved */
bool buffered[2]; /* it has stored its mark, which nobody else sees yet */
bool waits[2];    /* it waits at the gate; the thread's own, so that no reset loses it */
#ifdef BROKEN_ONE_WANT
bool want;
#define WANTED want
#else
#define WANTED (waits[0] || waits[1])
#endif

/* ---- the slice's page, and the other slice's: they outlive everybody ---- */
byte card_record = PIECES, host_record;
bool evict, wants_back, granted;
byte other_record;
bool other_wants, other_granted, settled;

/* ---- the world ---- */
byte on_card = PIECES, on_host, other_on_card;
byte inside;              /* threads in a call of the driver */
bool plain, dependent;    /* kernels that run; the dependent one ends once the other was launched */
bool launched;
bool killed, gone;        /* the process; gone: the kernel has taken back what it held */
byte exited;              /* threads of the process */
byte done;                /* threads that have made all of their calls */
bool over;                /* the other slice wants nothing more */

#define RUNNING (plain || dependent)

#define HOLDS \
	assert(killed || !(RUNNING || inside) || on_card == PIECES); /* never touched while away */ \
	assert(card_record >= on_card && host_record >= on_host && other_record >= other_on_card); \
	assert(on_card + other_on_card <= CARD); \
	assert(killed || on_card + on_host >= PIECES) /* never lost */

/* A step of the process, which waits until it can be made. */
#define STEP(when, what) \
	if \
	:: atomic { !killed && (when) -> what; HOLDS } \
	:: killed -> goto died \
	fi

inline enter(me)
{
	do
	::
#ifdef BROKEN_LOAD_FIRST
		STEP(true, shut = closed);
		STEP(true, buffered[me] = 1);
#else
		STEP(true, buffered[me] = 1);
		STEP(true, shut = closed); /* may overtake the store of the mark */
#endif
		if
		:: !shut -> break
		:: else
		fi;
		STEP(true, buffered[me] = 0; mark[me] = 0);
#ifdef BROKEN_ONE_WANT
		STEP(true, want = 1);
#endif
		STEP(true, waits[me] = 1);
		STEP(!closed, waits[me] = 0)
	od;
	STEP(true, inside++)
}

inline leave(me)
{
	STEP(true, inside--);
	STEP(true, buffered[me] = 0; mark[me] = 0)
}

/* Launches a kernel that waits for what the second thread launches, and waits for its end. */
proctype first()
{
	bool shut;

	enter(0);
	STEP(true, dependent = 1);
	leave(0);
	enter(0);
	STEP(!RUNNING, skip);
	leave(0);
	STEP(true, done++);
died:	atomic { killed -> shut = 0; exited++ }
}

proctype second()
{
	bool shut;

	enter(1);
	STEP(true, plain = 1; launched = 1);
	leave(1);
	enter(1);
	leave(1);
	STEP(true, done++);
died:	atomic { killed -> shut = 0; exited++ }
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

/* A processor's store becomes visible whenever it likes. */
proctype stores()
{
end_idle:
	do
	:: atomic { buffered[0] && !killed -> buffered[0] = 0; mark[0] = 1 }
	:: atomic { buffered[1] && !killed -> buffered[1] = 0; mark[1] = 1 }
	:: killed -> break
	od
}

proctype evictor()
{
	byte i;

end_resident:
	STEP(evict, skip);
	STEP(true, closed = 1);
#ifndef BROKEN_NO_MEMBARRIER
	STEP(true,
		if
		:: buffered[0] -> buffered[0] = 0; mark[0] = 1
		:: else
		fi;
		if
		:: buffered[1] -> buffered[1] = 0; mark[1] = 1
		:: else
		fi);
#endif
	/* One timeout for both: a call may wait for a kernel that waits for a call at the gate. */
	if
#ifndef BROKEN_NO_MARKS
	:: atomic { !killed && !mark[0] && !mark[1] -> skip }
#else
	:: atomic { !killed -> skip }
#endif
#if !defined(BROKEN_NO_TIMEOUT) && !defined(BROKEN_DRAIN_TIMEOUT_ONLY)
	:: atomic { !killed && (mark[0] || mark[1]) -> skip }; goto give_up
#endif
	:: killed -> goto died
	fi;
	if
#ifndef BROKEN_NO_DRAIN
	:: atomic { !killed && !RUNNING -> skip }
#else
	:: atomic { !killed -> skip }
#endif
#ifndef BROKEN_NO_TIMEOUT
	:: atomic { !killed && RUNNING -> skip }; goto give_up
#endif
	:: killed -> goto died
	fi;
	for (i : 1 .. PIECES) {
#ifndef BROKEN_HOST_LATE
		STEP(true, host_record++);
#endif
		STEP(true, on_host++); /* and copied there */
#ifdef BROKEN_HOST_LATE
		STEP(true, host_record++);
#endif
#ifdef BROKEN_RELEASE_FIRST
		STEP(true, card_record--);
		STEP(true, on_card--)
#else
		STEP(true, on_card--); /* cuMemUnmap, cuMemRelease */
		STEP(true, card_record--)
#endif
	}
	STEP(true, evict = 0; i = 0);
end_evicted:
	STEP(WANTED, skip);
#ifndef BROKEN_RETURN_EARLY
	STEP(true, wants_back = 1);
	STEP(granted, skip);
#endif
	for (i : 1 .. PIECES) {
		STEP(true, on_card++); /* cuMemCreate, cuMemMap at the same address */
		STEP(true, on_host--); /* copied back */
		STEP(true, host_record--)
	}
	STEP(true, wants_back = 0; i = 0);
	STEP(true, granted = 0);
	goto open_again;
give_up:
	STEP(true, evict = 0);
open_again:
	STEP(true, closed = 0);
#ifdef BROKEN_ONE_WANT
	STEP(true, want = 0);
#endif
	goto end_resident;
died:	atomic { i = 0; exited++ }
}

/* The process ends, when its threads have or by SIGKILL; what it held the kernel takes back later. */
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
	atomic { killed = 1; HOLDS };
	atomic {
		exited == 3 -> /* its last thread has left */
		plain = 0; dependent = 0; inside = 0; on_card = 0; on_host = 0;
		buffered[0] = 0; buffered[1] = 0; mark[0] = 0; mark[1] = 0; waits[0] = 0; waits[1] = 0;
		closed = 0; gone = 1; HOLDS
	}
}

/* Wants the room of one piece for a while. It gives it back: that is how room comes. */
proctype other()
{
	byte turns = TURNS;

	do
	:: turns > 0 ->
		turns--;
		other_wants = 1;
		other_granted;
		atomic { other_on_card = 1; HOLDS };
		atomic { other_wants = 0; other_granted = 0 };
		atomic { other_on_card = 0; HOLDS };
		atomic { other_record = 0; HOLDS }
	:: else -> break
	od;
	over = 1
}

/* A death between what the daemon saw and what it does; the next one finds the pages. */
#define ACT(what) \
	if \
	:: atomic { what; HOLDS } \
	:: atomic { kills > 0 -> kills-- } \
	fi

#define ROOM (CARD - card_record - other_record)
#ifdef BROKEN_GRANT_DEAD
#define DEAD false
#else
#define DEAD settled
#endif
#define RESIDENT (card_record == PIECES && !wants_back && !evict && !killed)

/* It alone raises records: the others' lower them. */
proctype daemon()
{
	byte kills = DAEMON_KILLS;

end_idle:
	do
	:: other_wants && !other_record && ROOM >= 1 -> ACT(other_record = 1)
	:: other_wants && !other_record && ROOM < 1 && RESIDENT -> ACT(evict = 1)
	:: other_wants && other_record && !other_granted -> ACT(other_granted = 1)
#ifdef BROKEN_GRANT_FIRST
	:: wants_back && !granted && !DEAD && ROOM >= PIECES ->
		ACT(granted = 1);
		ACT(card_record = PIECES)
#else
	:: wants_back && !granted && !card_record && ROOM >= PIECES && !DEAD -> ACT(card_record = PIECES)
	:: wants_back && !granted && card_record == PIECES -> ACT(granted = 1)
#endif
#ifdef BROKEN_SETTLE_EARLY
	:: killed && !settled -> ACT(card_record = 0; host_record = 0; settled = 1)
#else
	:: gone && !settled -> ACT(card_record = 0; host_record = 0; settled = 1)
#endif
	:: settled && over -> break
	od;
	assert(card_record == 0 && host_record == 0 && other_record == 0)
}

init
{
	atomic {
		run first();
		run second();
		run card();
		run stores();
		run evictor();
		run end();
		run other();
		run daemon()
	}
}
