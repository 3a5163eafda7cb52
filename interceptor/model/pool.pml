/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool: processes of two slices charge in the ledger of their slice and in that of the pool, as
 * charge.c does, with a death between any two steps. One STEP is one change of one ledger as a
 * whole: that such a change takes effect at one instant, once, and that a dead lane is settled
 * once by what it held there, whoever does it, is what ledger.pml shows. README.md says more.
 *
 * run.sh holds the configurations; each BROKEN_... takes one rule away, and Spin must find out.
 */
#ifndef OPS
#define OPS 2 /* calls of each process, over all its incarnations */
#endif
#ifndef SIZES
#define SIZES 2 /* a charge is of 1 .. SIZES units */
#endif
#ifndef SLICE
#define SLICE 2 /* the limit of each slice */
#endif
#ifndef POOL
#define POOL 3 /* the pool's limit: less than both slices have */
#endif
#ifndef DEATHS
#define DEATHS 2 /* SIGKILLs in the middle of a call; every process also ends, holding what it holds */
#endif
#ifndef RESPAWNS
#define RESPAWNS 0 /* lanes given to another process, or to the same one after execve */
#endif
#ifndef OVERHEADS
#define OVERHEADS 0 /* changes of what the enforcer charges for slice 0's processes, in both ledgers */
#endif
#ifndef RELEASE
#define RELEASE 0 /* is slice 0 released while its processes live? */
#endif

#define PROCESSES 3
#define SLICE_OF(p) ((p) / 2) /* 0 and 1 are of slice 0; 2 of slice 1 */

/* ---- the pages ---- */
byte slice_used[2], slice_limit[2], slice_lane[PROCESSES], slice_over[2];
byte pool_used, pool_lane[PROCESSES], pool_over;

/* ---- the world ---- */
bool alive[PROCESSES], dead[PROCESSES];
bool in_slice[PROCESSES], in_pool[PROCESSES]; /* has a lane there that is not settled */
byte deaths = DEATHS, ended;

/* ---- ghosts ---- */
byte granted[PROCESSES]; /* what the program has, by the answers that it got */
byte want[PROCESSES];    /* what it asks for now */
bool misfit[PROCESSES];  /* there was an instant of this call at which it did not fit */

#define LOOK(p) \
	if \
	:: want[p] && (slice_used[SLICE_OF(p)] + want[p] > slice_limit[SLICE_OF(p)] || \
	               pool_used + want[p] > POOL) -> misfit[p] = 1 \
	:: else \
	fi
#define LOOK_ALL LOOK(0); LOOK(1); LOOK(2)

/* What must hold at every instant. The order of the two: a pool's lane never has what the slice's
 * has not. (Of one that is settled in the pool and not in the slice that is so, too.) */
#define ORDERED(p) (!in_slice[p] || pool_lane[p] <= slice_lane[p])
#define HOLDS \
	assert(slice_used[0] == slice_lane[0] + slice_lane[1] + slice_over[0]); \
	assert(slice_used[1] == slice_lane[2] + slice_over[1]); \
	assert(pool_used == pool_lane[0] + pool_lane[1] + pool_lane[2] + pool_over); \
	assert(ORDERED(0) && ORDERED(1) && ORDERED(2)); \
	LOOK_ALL

/* One change; or the end of the process just before it. */
#define STEP(...) \
	if \
	:: atomic { __VA_ARGS__; HOLDS } \
	:: atomic { deaths > 0 -> deaths--; goto died } \
	fi

inline charge_slice() {
	fits = slice_used[s] + size <= slice_limit[s];
	if
	:: fits -> slice_used[s] = slice_used[s] + size; own_slice = own_slice + size; slice_lane[me] = own_slice
	:: else
	fi
}

inline charge_pool() {
#if defined BROKEN_POOL_UNASKED
	fits = 1;
#elif defined BROKEN_LAST_UNIT
	fits = pool_used + size < POOL;
#else
	fits = pool_used + size <= POOL;
#endif
	if
	:: fits ->
		pool_used = pool_used + size; own_pool = own_pool + size; pool_lane[me] = own_pool;
		assert(pool_used <= POOL)
	:: else
	fi
}

/* A word that has less than is taken off becomes 0, as in ledger.c. */
inline release_slice() {
	slice_used[s] = (slice_used[s] > size -> slice_used[s] - size : 0);
	own_slice = own_slice - size; slice_lane[me] = own_slice
}

inline release_pool() {
	pool_used = (pool_used > size -> pool_used - size : 0);
	own_pool = own_pool - size; pool_lane[me] = own_pool
}

proctype member(byte me) {
	byte own_slice, own_pool; /* struct account: in the process's own memory */
	byte size, calls, s = SLICE_OF(me);
	bool fits;

	do
	:: calls < OPS ->
		calls++;
		if
		:: atomic {
			select(size : 1 .. SIZES);
			want[me] = size; misfit[me] = 0; LOOK(me)
		   }
#ifdef BROKEN_POOL_FIRST
			STEP(charge_pool());
			if
			:: fits ->
				STEP(charge_slice());
				if
				:: !fits -> STEP(release_pool()); goto refused
				:: else
				fi
			:: else -> goto refused
			fi;
#else
			STEP(charge_slice());
			if
			:: !fits -> goto refused
			:: else
			fi;
			STEP(charge_pool());
			if
			:: !fits ->
#ifndef BROKEN_NO_GIVE_BACK
				STEP(release_slice());
#endif
				goto refused
			:: else
			fi;
#endif
			atomic { granted[me] = granted[me] + size; want[me] = 0; size = 0 };
			goto idle;
refused:		atomic {
				assert(misfit[me]);
				want[me] = 0; misfit[me] = 0; size = 0; fits = 0
			}
		:: granted[me] > 0 ->
			atomic { select(size : 1 .. granted[me]); granted[me] = granted[me] - size };
#ifdef BROKEN_SLICE_FIRST
			STEP(release_slice());
			STEP(release_pool());
#else
			STEP(release_pool());
			STEP(release_slice());
#endif
			size = 0
		fi;
idle:		/* Between two calls both ledgers have what the program has. */
		atomic {
			assert(own_slice == granted[me] && own_pool == granted[me]);
			assert(slice_lane[me] == own_slice || RELEASE);
			assert(pool_lane[me] == own_pool);
			fits = 0
		}
	:: break
	od;
died:	atomic {
		granted[me] = 0; want[me] = 0; misfit[me] = 0;
		alive[me] = 0; dead[me] = 1;
		own_slice = 0; own_pool = 0; size = 0; fits = 0; calls = 0; ended++
	}
}

/* Settling, each ledger for itself: by the enforcer in either order, with a restart of it between, by
 * siblings in the ledgers that they have. */
proctype settler() {
	byte p;

	do
	:: atomic { dead[0] && in_slice[0] -> p = 0 }; goto slice;
	:: atomic { dead[1] && in_slice[1] -> p = 1 }; goto slice;
	:: atomic { dead[2] && in_slice[2] -> p = 2 }; goto slice;
#ifndef BROKEN_SLICE_ALONE
	:: atomic { dead[0] && in_pool[0] -> p = 0 }; goto pool;
	:: atomic { dead[1] && in_pool[1] -> p = 1 }; goto pool;
	:: atomic { dead[2] && in_pool[2] -> p = 2 }; goto pool;
#endif
	:: ended == PROCESSES + RESPAWNS && !in_slice[0] && !in_slice[1] && !in_slice[2] &&
#ifndef BROKEN_SLICE_ALONE
	   !in_pool[0] && !in_pool[1] && !in_pool[2] &&
#endif
	   slice_over[0] == pool_over -> break;
	goto next;
slice:	atomic {
		if
		:: in_slice[p] ->
#ifdef BROKEN_BY_SLICE
			if
			:: in_pool[p] ->
				pool_used = (pool_used > slice_lane[p] -> pool_used - slice_lane[p] : 0);
				pool_lane[p] = 0; in_pool[p] = 0
			:: else
			fi;
#endif
			slice_used[SLICE_OF(p)] = slice_used[SLICE_OF(p)] - slice_lane[p];
			slice_lane[p] = 0; in_slice[p] = 0
		:: else
		fi;
		p = 0;
		HOLDS
	};
	goto next;
pool:	atomic {
		if
		:: in_pool[p] ->
			pool_used = pool_used - pool_lane[p];
			pool_lane[p] = 0; in_pool[p] = 0
		:: else
		fi;
		p = 0;
		HOLDS
	};
next:	skip
	od;
	/* All are dead and settled. */
	assert(slice_used[0] == slice_over[0] && slice_used[1] == 0);
	assert(pool_used == pool_over)
}

/* The lanes of a dead process are given to another once they are settled, in both ledgers. */
proctype attacher() {
	byte left = RESPAWNS;

	do
	:: left > 0 ->
		atomic {
#ifdef BROKEN_RESPAWN_EARLY
			dead[0] && !in_slice[0] ->
			pool_lane[0] = 0; /* what ledger_recycle() does to a lane that was settled */
#else
			dead[0] && !in_slice[0] && !in_pool[0] ->
#endif
			dead[0] = 0; alive[0] = 1; in_slice[0] = 1; in_pool[0] = 1; left--;
			HOLDS;
			run member(0)
		}
	:: left == 0 -> break
	od
}

/* What the driver holds beyond the lanes is charged in both, without asking a limit. */
proctype enforcer() {
	byte left = OVERHEADS;

	do
	:: left > 0 ->
		left--;
		atomic { slice_over[0]++; slice_used[0]++; HOLDS };
		atomic { pool_over++; pool_used++; HOLDS };
		if
		:: atomic { slice_over[0]--; slice_used[0]--; HOLDS };
		   atomic { pool_over--; pool_used--; HOLDS }
		:: skip
		fi
	:: left == 0 -> break
	od
#if RELEASE
	/* The slice gets nothing more; its processes live, and hold what they hold in the pool. */
	atomic {
		slice_limit[0] = 0;
#ifdef BROKEN_SETTLE_LIVING
		pool_used = pool_used - pool_lane[0]; pool_lane[0] = 0; in_pool[0] = 0;
#endif
		HOLDS
	}
#endif
}

init {
	byte p;

	atomic {
		slice_limit[0] = SLICE; slice_limit[1] = SLICE;
		do
		:: p < PROCESSES -> alive[p] = 1; in_slice[p] = 1; in_pool[p] = 1; run member(p); p++
		:: else -> break
		od;
		run settler();
		run attacher();
		run enforcer()
	}
}
