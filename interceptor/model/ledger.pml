/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger of ledger.c, as a machine can check it: every interleaving of its accesses to shared
 * memory, with a death between any two of them. README.md says what is left out, and why that may be.
 *
 * One STEP is one access to shared memory, together with the computing that follows it in registers
 * (which no other process can see). Names are those of ledger.c. "Ghost" variables are not in the page:
 * they know what is true, and the assertions compare the page with them.
 *
 * run.sh holds the configurations; each BROKEN_... takes one safeguard away, and Spin must find out.
 */
#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef OPS
#define OPS 2 /* changes that each process tries, over all its incarnations */
#endif
#ifndef SIZES
#define SIZES 2 /* a charge is of 1 .. SIZES units */
#endif
#ifndef LIMIT
#define LIMIT 2
#endif
#ifndef DEATHS
#define DEATHS 1 /* SIGKILLs in the middle of a call; every process also ends, holding what it holds */
#endif
#ifndef ENFORCER_DEATHS
#define ENFORCER_DEATHS 0
#endif
#ifndef RESPAWNS
#define RESPAWNS 0 /* lanes given to another process */
#endif
#ifndef OVERHEADS
#define OVERHEADS 0 /* changes of lane 0 */
#endif
#ifndef LIMITS
#define LIMITS 0 /* changes of the limit, between LIMIT and LOW */
#endif
#ifndef LOW
#define LOW 1
#endif
#ifndef SIBLINGS
#define SIBLINGS 1 /* do processes settle their dead siblings? */
#endif
#ifndef RAISES
#define RAISES 0 /* ledger_set upwards (what the driver holds already), exempt from the limit */
#endif
#ifndef PEAK
#define PEAK 0
#endif
#ifndef READER
#define READER 0 /* a process that calls ledger_held and ledger_number for lane 1 */
#endif

#define LANES (CLIENTS + 1)

/* ---- the page: one device ---- */
byte used, tag_lane, tag_number; /* the word */
byte limit = LIMIT;
byte peak;
typedef Entry {
	byte number;
	byte sum[2];
	byte confirmed
};
Entry entry[LANES];
byte generation[LANES];

/* ---- the world ---- */
bool ready[LANES]; /* the lane was given to a process, and that is alive */
bool dead[LANES];  /* the process that the lane's identity fields name is dead */
byte deaths[2];   /* SIGKILLs left: [0] the enforcer, [1] the others */

/* ---- ghosts ---- */
byte truth[LANES];   /* what the changes of the lane that took effect add up to */
byte last[LANES];    /* the number of the last of them */
bool settled[LANES]; /* since the lane was given out */
byte in_force = LIMIT; /* the highest limit that may still let a charge pass */
byte want[LANES];    /* bytes of the limited charge that the lane is in, or 0 */
bool misfit[LANES];  /* there was an instant of this call at which it did not fit */
#if PEAK
byte highest;
#endif
#if READER
byte ever;    /* bit n: lane 1 held n at some instant since the reader's call began */
bool changed; /* a change of lane 1 took effect since the reader's first ledger_number returned */
#endif

#if CLIENTS == 3
#define TOTAL (truth[0] + truth[1] + truth[2] + truth[3])
#else
#define TOTAL (truth[0] + truth[1] + truth[2])
#endif

/* What does not fit now, did not fit at some instant of the calls that are under way. */
#define LOOK(p) \
	if \
	:: want[p] && used + want[p] > limit -> misfit[p] = 1 \
	:: else \
	fi
#if CLIENTS == 3
#define LOOK_ALL LOOK(1); LOOK(2); LOOK(3)
#else
#define LOOK_ALL LOOK(1); LOOK(2)
#endif

/* One access; or the end of the process just before it. `me` is 0 in the enforcer. */
#if DEATHS || ENFORCER_DEATHS
#define STEP(...) \
	if \
	:: atomic { __VA_ARGS__ } \
	:: atomic { deaths[(me > 0)] > 0 -> deaths[(me > 0)]--; depart(); goto died } \
	fi
#else
#define STEP(...) atomic { __VA_ARGS__ }
#endif

#define WHEN(c, ...) if :: (c) -> __VA_ARGS__ :: else fi

/* Nothing in registers outlives a call: forgetting it keeps the states few. */
inline forget()
{
	c_lane = 0; c_number = 0; c_held = 0; c_sum = 0; c_limited = 0; c_settling = 0;
	seen_lane = 0; seen_number = 0; seen_used = 0; next = 0; x = 0;
	done = 0; took = 0; v = 0; g = 0;
	want[me] = 0; misfit[me] = 0
}

inline depart()
{
	forget();
	number = 0;
	held = 0;
	if
	:: me > 0 -> dead[me] = 1; ready[me] = 0
	:: else
	fi
}

/* took = did the lane's change n take effect? */
inline took_effect(lane_, n_)
{
#ifdef BROKEN_READ_ORDER
	STEP( took = entry[lane_].confirmed >= n_ );
	if
	:: took
	:: else -> STEP( took = tag_lane == lane_ && tag_number == n_ )
	fi
#else
	STEP( took = tag_lane == lane_ && tag_number == n_ );
	if
	:: took
	:: else -> STEP( took = entry[lane_].confirmed >= n_ )
	fi
#endif
}

/* raise_to(&entry[seen_lane].confirmed, seen_number) */
inline confirm()
{
#ifdef BROKEN_PLAIN_CONFIRM
	STEP( entry[seen_lane].confirmed = seen_number );
#else
#ifdef BROKEN_CHECK_THEN_STORE
	STEP( x = entry[seen_lane].confirmed );
	if
	:: x < seen_number -> STEP( entry[seen_lane].confirmed = seen_number; x = 0 )
	:: else
	fi;
#else
	STEP( x = entry[seen_lane].confirmed );
	do
	:: x < seen_number ->
		STEP(
			if
			:: entry[seen_lane].confirmed == x ->
				entry[seen_lane].confirmed = seen_number;
				x = seen_number
			:: else -> x = entry[seen_lane].confirmed
			fi
		)
	:: else -> break
	od;
#endif
#endif
	x = 0
}

inline raise_peak()
{
#if PEAK
	STEP( x = peak );
	if
	:: x < seen_used ->
		STEP( x = peak );
		do
		:: x < seen_used ->
			STEP(
				if
				:: peak == x -> peak = seen_used; x = seen_used
				:: else -> x = peak
				fi
			)
		:: else -> break
		od
	:: else
	fi;
	x = 0
#else
	skip
#endif
}

/* The ghosts of a swap that succeeded; the word is `next` now. */
inline effect()
{
	assert(c_held >= c_sum || seen_used + c_sum - c_held == next);
	assert(c_held <= c_sum || seen_used + c_sum == next + c_held); /* it never saturates */
	truth[c_lane] = c_sum;
	assert(used == TOTAL);
	assert(c_number > last[c_lane]); /* no tag is used twice */
	last[c_lane] = c_number;
	if
	:: c_settling ->
		assert(!ready[c_lane]);   /* never what a living process holds */
		assert(!settled[c_lane]); /* once */
		settled[c_lane] = 1
	:: else
	fi;
	if
	:: c_limited -> assert(used <= in_force)
	:: else
	fi;
	LOOK_ALL;
#if PEAK
	if
	:: used > highest -> highest = used
	:: else
	fi;
	assert((peak > used -> peak : used) == highest);
#endif
#if READER
	if
	:: c_lane == 1 -> ever = ever | (1 << c_sum); changed = 1
	:: else
	fi;
#endif
	done = 1
}

/* change() of ledger.c; c_... are its arguments. done: 1 took effect (or, settling, had), 2 refused. */
inline change()
{
	do
	:: done == 0 ->
#ifdef BROKEN_LIMIT_EARLY
		if
		:: c_limited -> STEP( x = limit )
		:: else
		fi;
#endif
#ifdef BROKEN_USED_FIRST
		STEP( seen_used = used );
		STEP( seen_lane = tag_lane; seen_number = tag_number );
#else
		STEP( seen_lane = tag_lane; seen_number = tag_number );
		STEP( seen_used = used );
#endif
#ifndef BROKEN_SETTLE_UNCHECKED
		if
		:: c_settling ->
			if
			:: seen_lane == c_lane && seen_number == c_number -> done = 1
			:: else -> STEP( WHEN(entry[c_lane].confirmed >= c_number, done = 1) )
			fi
		:: else
		fi;
#endif
		if
		:: done == 0 && c_limited ->
#ifndef BROKEN_LIMIT_EARLY
			STEP( x = limit );
#endif
			if
			:: seen_used > x || c_sum - c_held > x - seen_used ->
				x = 0;
#ifdef BROKEN_REFUSE_UNCHECKED
				done = 2
#else
				STEP(
					if
					:: tag_lane == seen_lane && tag_number == seen_number -> done = 2
					:: else -> done = 3 /* again */
					fi
				)
#endif
			:: else -> x = 0
			fi
		:: else
		fi;
		if
		:: done == 3 -> done = 0
		:: done == 0 ->
			atomic {
				if
				:: c_sum >= c_held -> next = seen_used + c_sum - c_held
				:: else ->
					if
					:: seen_used >= c_held - c_sum -> next = seen_used - (c_held - c_sum)
					:: else -> next = 0
					fi
				fi
			};
#if !defined(BROKEN_NO_CONFIRM) && !defined(BROKEN_CONFIRM_LATE)
			confirm();
#endif
			raise_peak();
			if
			:: c_settling
			:: else ->
#ifdef SUM_FIRST
				STEP( entry[me].sum[c_number & 1] = c_sum );
#endif
#ifndef BROKEN_NUMBER_LATE
				STEP( entry[me].number = c_number );
#endif
#ifdef BROKEN_ONE_SUM
				STEP( entry[me].sum[0] = c_sum; entry[me].sum[1] = c_sum );
#else
#ifndef SUM_FIRST
				STEP( entry[me].sum[c_number & 1] = c_sum );
#endif
#endif
			fi;
			STEP(
				if
				:: used == seen_used && tag_lane == seen_lane && tag_number == seen_number ->
					used = next;
					tag_lane = c_lane;
					tag_number = c_number;
					effect()
				:: else
				fi
			);
#ifdef BROKEN_CONFIRM_LATE
			if
			:: done == 1 -> confirm()
			:: else
			fi;
#endif
#ifdef BROKEN_NUMBER_LATE
			if
			:: done == 1 && !c_settling -> STEP( entry[me].number = c_number )
			:: else
			fi;
#endif
		:: else
		fi
	:: else -> break
	od
}

/* ledger_open for lane `me`: number and held */
inline open()
{
	STEP( number = entry[me].number );
#ifndef BROKEN_OPEN_TRUSTS
	if
	:: number > 0 ->
		took_effect(me, number);
		if
		:: !took -> number--
		:: else
		fi;
		took = 0
	:: else
	fi;
#endif
	STEP( held = entry[me].sum[number & 1]; assert(held == truth[me]) )
}

/* move: the lane's own next change */
inline move(sum_, limited_)
{
	atomic {
		c_lane = me;
		c_number = number + 1;
		c_held = held;
		c_sum = sum_;
		c_limited = limited_;
		if
		:: c_limited -> want[me] = c_sum - c_held; LOOK(me)
		:: else
		fi
	};
	change();
	atomic {
		if
		:: done == 1 -> number = c_number; held = c_sum; assert(held == truth[me])
		:: done == 2 -> assert(misfit[me]) /* it did not fit at some instant */
		:: else
		fi;
		forget()
	}
}

/*
 * The first half of ledger_settle for lane v, of which generation g is known to be dead: what change()
 * then has to do. done != 0: nothing.
 */
inline settle_begin()
{
#ifndef BROKEN_NO_GENERATION
	STEP( WHEN(generation[v] != g, done = 1) );
#endif
	if
	:: done == 0 ->
		STEP( c_number = entry[v].number );
		if
		:: c_number > 0 -> took_effect(v, c_number)
		:: else -> took = 1
		fi;
		STEP( c_held = entry[v].sum[(took -> c_number : c_number + 1) & 1] );
		took = 0;
#if !defined(BROKEN_NO_GENERATION) && !defined(BROKEN_GENERATION_ONCE)
		STEP( WHEN(generation[v] != g, done = 1) );
#endif
		atomic {
			if
			:: c_held == 0 -> done = 1
			:: else
			fi;
			c_lane = v;
			c_number++;
			c_sum = 0;
			c_settling = 1
		}
	:: else
	fi
}

#define LOCALS \
	byte number, held; \
	byte c_lane, c_number, c_held, c_sum; \
	bool c_limited, c_settling; \
	byte seen_lane, seen_number, seen_used, next, x; \
	byte done, v, g; \
	bool took

/* A process of the slice, and the ones that get its lane after it. */
proctype client(byte me)
{
	LOCALS;
	byte ops = OPS;

died:
end_dead:
	ready[me];
	open();
	do
	:: ops > 0 ->
		atomic { ops--; v = 0 };
		/* v: what it will hold */
		if
		:: v = held + 1
#if SIZES > 1
		:: v = held + 2
#endif
		:: held > 0 -> v = 0
		:: held > 1 -> v = held - 1
		fi;
		if
		:: v > held -> move(v, 1)
#if !RAISES
		:: v < held -> move(v, 0)
#else
		:: v != held -> move(v, 0)
#endif
		fi
#if SIBLINGS
	/* A sibling that needs bytes. Nothing to look for while nobody is dead (and the states are fewer). */
	:: me != 1 && !ready[1] -> v = 1; goto settle
	:: me != 2 && !ready[2] -> v = 2; goto settle
#endif
	:: atomic { depart(); goto died } /* it ends; what it holds, it holds */
	:: false ->
settle:
		/* The generation first, then who the lane's process is. */
#ifdef BROKEN_IDENTITY_FIRST
		STEP( WHEN(!dead[v], done = 1) );
		STEP( g = generation[v] );
#else
		STEP( g = generation[v] );
		STEP( WHEN(!dead[v], done = 1) );
#endif
		if
		:: done == 0 -> settle_begin()
		:: else
		fi;
		change();
		atomic { forget() }
	od
}

proctype enforcer()
{
	LOCALS;
	byte me = 0;
	byte overheads = OVERHEADS, limits = LIMITS;
	byte respawns = RESPAWNS;
	byte goal = LIMIT; /* what its store says that the limit should be */
	bool recycle;

	goto first;
died:
	recycle = 0;
first:
	open();
	do
#if OVERHEADS
	:: overheads > 0 -> overheads--; move((held -> 0 : 1), 0)
#endif
#if LIMITS
	:: limits > 0 -> atomic { limits--; goal = (goal == LIMIT -> LOW : LIMIT) };
		goto set_limit
	/* Its predecessor died before ledger_limit returned. */
	:: (limit != goal || in_force != goal) -> goto set_limit
	:: false ->
set_limit:
#ifdef BROKEN_LIMIT_BUMP_FIRST
		move(held, 0);
#endif
		STEP(
			limit = goal;
			if
			:: goal > in_force -> in_force = goal
			:: else
			fi;
			LOOK_ALL
		);
#if !defined(BROKEN_LIMIT_NO_BUMP) && !defined(BROKEN_LIMIT_BUMP_FIRST)
		move(held, 0);
#endif
		atomic { in_force = goal }
#endif
	/* Settle a dead lane, and perhaps give it to another process. */
	:: atomic { !ready[1] -> v = 1; g = generation[1] };
		goto settle
	:: atomic { !ready[2] -> v = 2; g = generation[2] };
		goto settle
#if CLIENTS == 3
	:: atomic { !ready[3] -> v = 3; g = generation[3] };
		goto settle
#endif
	:: false ->
settle:
		if
		:: respawns > 0 -> recycle = 1
		:: recycle = 0
		fi;
#ifndef BROKEN_IDENTITY_LATE
		if
		:: recycle -> STEP( dead[v] = 0 ) /* the identity is the new process's */
		:: else
		fi;
#endif
		settle_begin();
		change();
		atomic {
			c_lane = 0; c_number = 0; c_held = 0; c_sum = 0; c_settling = 0;
			seen_lane = 0; seen_number = 0; seen_used = 0; next = 0; done = 0;
			assert(truth[v] == 0) /* settled, whoever did it */
		};
		if
		:: recycle ->
#ifndef GENERATION_LATE
			STEP( generation[v] = g + 1 );
#endif
			if
			:: entry[v].number > 0 ->
#ifdef BROKEN_RECYCLE_NUMBER_FIRST
				STEP( entry[v].number = entry[v].number + 1 );
#endif
#ifndef BROKEN_RECYCLE_KEEPS_SUMS
				STEP( entry[v].sum[1] = 0 );
				STEP( entry[v].sum[0] = 0 );
#endif
#if !defined(BROKEN_RECYCLE_KEEPS_NUMBER) && !defined(BROKEN_RECYCLE_NUMBER_FIRST)
				STEP( entry[v].number = entry[v].number + 1 );
#endif
			:: else
			fi;
#ifdef GENERATION_LATE
			STEP( generation[v] = g + 1 );
#endif
			STEP( dead[v] = 0; ready[v] = 1; settled[v] = 0; respawns-- );
			recycle = 0
		:: else
		fi;
		atomic { forget() }
	:: !ready[1] && !ready[2] &&
#if CLIENTS == 3
	   !ready[3] && truth[3] == 0 &&
#endif
	   truth[1] == 0 && truth[2] == 0 -> break
	od;
	assert(used == truth[0])
}

#if READER
/* ledger_number and ledger_held of lane 1, by a process that only reads. */
inline read_effect(n_, out)
{
	atomic { out = tag_lane == 1 && tag_number == n_ };
	if
	:: out
	:: else -> atomic { out = entry[1].confirmed >= n_ }
	fi
}

/* out = ledger_number */
inline read_number(out)
{
	do
	:: true ->
		atomic { n = entry[1].number };
		out = n;
#ifndef BROKEN_NUMBER_WRITTEN
		read_effect(n + 1, took);
		if
		:: took -> out = n + 1
		:: else ->
			read_effect(n, took);
			if
			:: took || n == 0
			:: else -> out = n - 1
			fi
		fi;
#endif
		atomic {
			if
			:: entry[1].number == n -> break
			:: else
			fi
		}
	od
}

proctype reader()
{
	byte n, sum, before, after;
	bool took, gone;

	read_number(before);
	atomic { changed = 0 };
	/* What happens here, the second call must show. */
	atomic { ever = 1 << truth[1]; sum = changed };
	read_number(after);
	atomic { assert(after != before || !sum); n = 0; before = 0; after = 0; took = 0; sum = 0 };

	do
	:: true ->
		atomic { n = entry[1].number };
		read_effect(n, took);
		if
		:: n == 0 -> took = 1
		:: else
		fi;
		atomic { sum = entry[1].sum[(took -> n : n + 1) & 1] };
#ifndef BROKEN_HELD_SETTLED
		/* Only who settles the lane makes a change that the lane has not written down. */
		read_effect(n + 1, gone);
		if
		:: gone -> sum = 0
		:: else
		fi;
#endif
		atomic {
			if
			:: entry[1].number == n -> break
			:: else
			fi
		}
	od;
	atomic {
		assert(ever & (1 << sum)); /* it held that at some instant of the call */
		n = 0; sum = 0; took = 0; gone = 0; ever = 0
	}
}
#endif

init
{
	atomic {
		byte i;
		for (i : 1 .. CLIENTS) {
			ready[i] = 1;
			generation[i] = 1
		};
		i = 0;
		deaths[0] = ENFORCER_DEATHS;
		deaths[1] = DEATHS;
		run enforcer();
		run client(1);
		run client(2);
#if CLIENTS == 3
		run client(3);
#endif
#if READER
		run reader();
#endif
	}
}
