/* SPDX-License-Identifier: Apache-2.0 */
#include "vram.h"

#include "address.h"
#include "hold.h"

#include <stdlib.h>
#include <string.h>

#define UNIT 512u
#define UNITS (VRAM_BLOCK / UNIT)

struct block {
	struct block *next, **link;
	CUdeviceptr start;
	unsigned free;
	struct vram_share share;
	unsigned hint; /* the end of the last piece, where there is usually room */
	uint8_t taken[UNITS];
};

/* The start of the first `count` free units in [from, to), or `to`. */
static unsigned find_run(const struct block *block, unsigned from, unsigned to, unsigned count)
{
	unsigned run = 0;

	for (unsigned i = from; i < to; i++) {
		run = block->taken[i] ? 0 : run + 1;
		if (run == count)
			return i + 1 - count;
	}
	return to;
}

static bool take_from(struct block *block, unsigned count, struct vram *out)
{
	unsigned first;

	if (block->free < count)
		return false;
	first = find_run(block, block->hint, UNITS, count);
	if (first == UNITS)
		first = find_run(block, 0, UNITS, count);
	if (first == UNITS)
		return false;
	memset(block->taken + first, 1, count);
	block->free -= count;
	block->hint = first + count;
	out->block = block;
	out->first = first;
	out->count = count;
	return true;
}

static struct block *add_block(struct device *device, enum vram_kind kind)
{
	struct block *block = calloc(1, sizeof(*block));

	if (!block)
		return NULL;
	block->start = address_reserve(VRAM_BLOCK, ADDRESS_STEP);
	if (!block->start)
		goto no_address;
	if (!device_charge(device, VRAM_BLOCK))
		goto no_memory;
	block->free = UNITS;
	block->next = device->blocks[kind];
	block->link = &device->blocks[kind];
	if (block->next)
		block->next->link = &block->next;
	device->blocks[kind] = block;
	return block;
no_memory:
	address_free(block->start, VRAM_BLOCK);
no_address:
	free(block);
	return NULL;
}

static bool take_small(struct device *device, enum vram_kind kind, size_t size, struct vram *out)
{
	unsigned count = (unsigned)(round_up(size, UNIT) / UNIT);
	struct block *block;

	for (block = device->blocks[kind]; block; block = block->next)
		if (take_from(block, count, out))
			return true;
	block = add_block(device, kind);
	return block && take_from(block, count, out);
}

bool vram_take(struct device *device, enum vram_kind kind, size_t size, struct vram *out)
{
	*out = (struct vram){.device = device};
	if (size <= VRAM_SMALL || (kind == VRAM_LINEAR && size < VRAM_BLOCK))
		return take_small(device, kind, size, out);
	if (size > device_capacity(device))
		return false;
	out->bytes = round_up(size, VRAM_BLOCK);
	return device_charge(device, out->bytes);
}

static void give_back(struct device *device, uint64_t bytes, const struct vram_share *share)
{
	if (share->object)
		object_let_go(share->hold);
	else
		device_release(device, bytes);
}

void vram_give(struct vram *vram)
{
	struct block *block = vram->block;

	if (!block) {
		give_back(vram->device, vram->bytes, &vram->share);
		return;
	}
	memset(block->taken + vram->first, 0, vram->count);
	block->free += vram->count;
	if (block->free < UNITS)
		return;
	*block->link = block->next;
	if (block->next)
		block->next->link = block->link;
	address_free(block->start, VRAM_BLOCK);
	give_back(vram->device, VRAM_BLOCK, &block->share);
	free(block);
}

uint64_t vram_share(struct vram *vram, CUdeviceptr start)
{
	struct block *block = vram->block;
	struct vram_share *share = block ? &block->share : &vram->share;
	uint64_t bytes = block ? VRAM_BLOCK : vram->bytes;
	struct object_info info = {.kind = OBJECT_LINEAR,
	                           .device = vram->device->machine,
	                           .bytes = bytes,
	                           .size = bytes,
	                           .address = block ? block->start : start,
	                           .location_type = CU_MEM_LOCATION_TYPE_DEVICE};

	if (!share->object)
		share->object = object_create(&info, HOLD_HANDLE, &share->hold);
	return share->object;
}

CUdeviceptr vram_address(const struct vram *vram)
{
	return vram->block ? vram->block->start + (CUdeviceptr)vram->first * UNIT : 0;
}
