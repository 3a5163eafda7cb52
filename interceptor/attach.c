/* SPDX-License-Identifier: Apache-2.0 */
#include "attach_client.h"
#include "monotonic.h"
#include "process.h"
#include "say.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Nanoseconds: how long the first attach retries while the enforcer is restarted, the pause between
 * its tries, and the wait after a failed attach. */
#define FIRST_PATIENCE 5000000000ull
#define RETRY_PAUSE 20000000ull
#define RETRY_AFTER 1000000000ull

static void explain(struct process *process, enum ask_result result, uint16_t status)
{
	static const char consequence[] = "no GPU memory is granted to this process";
	struct sockaddr_un address;
	int error = errno;

	if (result == ASK_NO_DIRECTORY) {
		say_once(process, ONCE_NO_DIRECTORY,
		         "this process is in no slice (no %s/%s, and %s is not set): %s",
		         ATTACH_CONTAINER_DIR, ATTACH_SOCKET_NAME, ATTACH_DIR_ENV, consequence);
	} else if (result == ASK_UNREACHABLE) {
		attach_address(&address);
		say_once(process, ONCE_ATTACH_FAILED,
		         "the enforcer does not answer at %s: %s%s: %s until it does",
		         address.sun_path, strerror(error),
		         error == EACCES ? " (give this user access to each directory of that path)"
		                         : "",
		         consequence);
	} else if (result == ASK_NONSENSE) {
		say_once(
		    process, ONCE_ATTACH_FAILED,
		    "the attach socket's server is not the enforcer, or has another version: %s",
		    consequence);
	} else if (status == ATTACH_NOT_MEMBER) {
		say_once(process, ONCE_NOT_MEMBER, "this process does not belong to this slice: %s",
		         consequence);
	} else if (status == ATTACH_HIDDEN) {
		say_once(
		    process, ONCE_NOT_MEMBER,
		    "the enforcer cannot tell whether this process belongs to this slice, since "
		    "/proc is mounted with hidepid (mount it without, or have root run "
		    "gpusliced): %s",
		    consequence);
	} else if (status == ATTACH_FULL) {
		say_once(process, ONCE_FULL,
		         "the slice has no free process slot (%u at one time): %s", LEDGER_SLOTS,
		         consequence);
	} else if (status == ATTACH_CLOSED) {
		say_once(process, ONCE_CLOSED,
		         "the slice was released, has expired, or is suspended or damaged: %s",
		         consequence);
	} else {
		say_once(process, ONCE_ATTACH_FAILED,
		         "the enforcer refused to attach this process (code %u): %s", status,
		         consequence);
	}
}

/* Return NULL if the descriptor is not of a ledger. */
static struct ledger *map_ledger(int descriptor)
{
	struct ledger *ledger;

	if (descriptor < 0)
		return NULL;
	ledger =
	    mmap(NULL, sizeof(struct ledger), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	if (ledger == MAP_FAILED)
		return NULL;
	if (!ledger_valid(ledger, sizeof(struct ledger))) {
		munmap(ledger, sizeof(struct ledger));
		return NULL;
	}
	return ledger;
}

/* First map the page, then check that the enforcer is still there. If it died earlier, its
 * successor may have found no process with this page and made another: charges here would not
 * count. */
static enum ask_result adopt(struct process *process, const struct attach_reply *reply,
                             const int descriptors[ASK_DESCRIPTORS], int connection)
{
	struct ledger *mapped[ASK_DESCRIPTORS];
	enum ask_result result = ASK_NONSENSE;
	unsigned pools = 0, count = 0;

	while (pools < ATTACH_POOLS && reply->pool_lane[pools])
		pools++;
	if (reply->lane == 0 || reply->lane >= LEDGER_LANES || reply->size != sizeof(struct ledger))
		return ASK_NONSENSE;
	for (unsigned i = 0; i < pools; i++) {
		if (reply->pool_lane[i] >= LEDGER_LANES)
			return ASK_NONSENSE;
	}
	while (count <= pools) {
		mapped[count] = map_ledger(descriptors[count]);
		if (!mapped[count])
			break;
		count++;
	}
	if (count > pools) {
		errno = ECONNRESET;
		result = enforcer_there(connection) ? ASK_ANSWERED : ASK_UNREACHABLE;
	}
	if (result != ASK_ANSWERED) {
		int saved = errno;

		while (count > 0)
			munmap(mapped[--count], sizeof(struct ledger));
		errno = saved;
		return result;
	}
	process->ledger = mapped[0];
	process->lane = reply->lane;
	process->pool_count = pools;
	for (unsigned i = 0; i < pools; i++)
		process->pools[i] =
		    (struct common){.ledger = mapped[1 + i], .lane = reply->pool_lane[i]};
	gate_begin(process->ledger, &process->ledger->lane[process->lane]);
	__atomic_store_n(&process->attached, 1, __ATOMIC_RELEASE);
	return ASK_ANSWERED;
}

/* If `patient`, retry while the enforcer is restarted. Do not retry if it hangs (EAGAIN): the
 * timeout has passed. */
static enum ask_result ask(struct attach_request *request, struct attach_reply *reply,
                           int descriptors[ASK_DESCRIPTORS], int *connection, bool patient)
{
	uint64_t start = monotonic_nanoseconds();

	for (;;) {
		struct timespec pause = {.tv_nsec = RETRY_PAUSE};
		enum ask_result result = ask_enforcer(request, reply, descriptors, connection);

		if (result != ASK_UNREACHABLE || errno == EAGAIN || !patient ||
		    monotonic_nanoseconds() - start >= FIRST_PATIENCE)
			return result;
		nanosleep(&pause, NULL);
	}
}

void attach_process(struct process *process)
{
	bool first = process->retry_at == 0;

	say_begin();
	if (monotonic_nanoseconds() < process->retry_at)
		return;
	for (int again = 0;;) {
		struct attach_request request = {.op = ATTACH_OP_ATTACH};
		struct attach_reply reply = {0};
		int descriptors[ASK_DESCRIPTORS], connection, error;
		enum ask_result result = ask(&request, &reply, descriptors, &connection, first);
		bool died;

		if (result == ASK_ANSWERED && reply.status == ATTACH_OK)
			result = adopt(process, &reply, descriptors, connection);
		died = result == ASK_UNREACHABLE && connection >= 0;
		error = errno;
		ask_close(descriptors);
		if (connection >= 0)
			close(connection);
		errno = error;
		if (process->attached)
			return;
		if (result == ASK_ANSWERED && reply.status == ATTACH_AWAY) {
			first = true;
			continue;
		}
		/* The enforcer died before its reply was adopted: try its successor. */
		if (died && again++ == 0)
			continue;
		explain(process, result, reply.status);
		process->retry_at = monotonic_nanoseconds() + RETRY_AFTER;
		return;
	}
}

/* Return the device's place in process->refused, or that of the oldest refusal. */
static size_t place_of(const struct process *process, const uint8_t uuid[16])
{
	size_t oldest = 0;

	for (size_t i = 0; i < PROCESS_ORDINALS; i++) {
		if (memcmp(process->refused[i].uuid, uuid, 16) == 0)
			return i;
		if (process->refused[i].retry_at < process->refused[oldest].retry_at)
			oldest = i;
	}
	return oldest;
}

int attach_device(struct process *process, const uint8_t uuid[16], uint64_t bytes, CUdevice ordinal)
{
	struct attach_request request = {.op = ATTACH_OP_DEVICE, .bytes = bytes};
	struct attach_reply reply = {0};
	int device = account_find_device(process->ledger, uuid);
	enum ask_result result;
	size_t place;

	if (device >= 0)
		return device;
	place = place_of(process, uuid);
	if (memcmp(process->refused[place].uuid, uuid, 16) == 0 &&
	    monotonic_nanoseconds() < process->refused[place].retry_at)
		return -1;
	memcpy(request.uuid, uuid, 16);
	result = ask(&request, &reply, NULL, NULL, true);
	if (result == ASK_ANSWERED && reply.status == ATTACH_OK && reply.device < LEDGER_DEVICES)
		return (int)reply.device;
	if (result != ASK_ANSWERED)
		explain(process, result, reply.status);
	else if (ordinal >= 0)
		say_once(process, ONCE_NO_DEVICE,
		         "the slice has no quota on CUDA device %d: no memory is granted there",
		         ordinal);
	memcpy(process->refused[place].uuid, uuid, 16);
	process->refused[place].retry_at = monotonic_nanoseconds() + RETRY_AFTER;
	return -1;
}
