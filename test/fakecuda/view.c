/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#include "hold.h"
#include "machine_checkpoint.h"

#include <stdlib.h>

struct view {
	struct view *next;
	uint64_t object;
	unsigned hold;
	unsigned pieces;
	CUdeviceptr start;  /* in this process */
	CUdeviceptr origin; /* in the exporter */
	uint64_t size;
};

struct piece {
	struct owned owned;
	struct range range;
	struct view *view;
	unsigned opened;
};

static struct view *views;

static struct piece *piece_of(struct range *range)
{
	return (struct piece *)((char *)range - offsetof(struct piece, range));
}

static struct view *find_view(uint64_t object)
{
	struct view *view;

	for (view = views; view && view->object != object; view = view->next)
		;
	return view;
}

static CUresult add_view(uint64_t object, const struct object_info *info, struct view **out)
{
	struct view *view = calloc(1, sizeof(*view));
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (!view)
		return result;
	view->object = object;
	view->origin = info->address;
	view->size = info->size;
	view->start = address_reserve_at(info->address, info->size);
	if (!view->start)
		goto no_address;
	/* A pool's memory is never listed for its importer (hold.h). */
	view->hold = object_hold(object, info->kind == OBJECT_SEGMENT ? HOLD_MAPPING : HOLD_HANDLE);
	if (!view->hold)
		goto no_hold;
	machine_add_unmovable(1);
	view->next = views;
	views = view;
	*out = view;
	return CUDA_SUCCESS;
no_hold:
	address_free(view->start, view->size);
no_address:
	free(view);
	return result;
}

static void drop_view(struct view *view)
{
	struct view **link = &views;

	while (*link != view)
		link = &(*link)->next;
	*link = view->next;
	machine_add_unmovable(-1);
	object_let_go(view->hold);
	address_free(view->start, view->size);
	free(view);
}

static bool is_within(const struct exported *exported, const struct object_info *info)
{
	uint64_t offset = exported->address - info->address;

	return exported->size && exported->address >= info->address && offset < info->size &&
	       exported->size <= info->size - offset;
}

static void destroy_piece(struct owned *owned)
{
	struct piece *piece = (struct piece *)owned;
	struct view *view = piece->view;

	ranges_remove(&allocations, &piece->range);
	free(piece);
	if (--view->pieces == 0)
		drop_view(view);
}

static CUresult add_piece(CUcontext context, struct view *view, const struct exported *exported,
                          enum range_kind kind, struct range **out)
{
	struct piece *piece = calloc(1, sizeof(*piece));

	if (!piece)
		return CUDA_ERROR_OUT_OF_MEMORY;
	piece->view = view;
	piece->opened = 1;
	piece->range = (struct range){.start = view->start + (exported->address - view->origin),
	                              .size = exported->size,
	                              .kind = kind};
	/* It overlaps another piece: the exporter no longer has one of them. */
	if (ranges_overlapping(&allocations, piece->range.start, piece->range.size) ||
	    !ranges_add(&allocations, &piece->range)) {
		free(piece);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	context_own(context, &piece->owned, destroy_piece);
	view->pieces++;
	*out = &piece->range;
	return CUDA_SUCCESS;
}

/* NULL: the view does not exist, or has nothing at that address. */
static struct range *range_in(const struct view *view, const struct exported *exported,
                              enum range_kind kind)
{
	struct range *range;

	if (!view)
		return NULL;
	range = ranges_at(&allocations, view->start + (exported->address - view->origin));
	return range && range->kind == kind && range->size == exported->size ? range : NULL;
}

bool view_is_open(const struct exported *exported, enum range_kind kind)
{
	return range_in(find_view(exported->object), exported, kind) != NULL;
}

CUresult view_open(CUcontext context, const struct exported *exported, int object_kind,
                   enum range_kind kind, struct range **out)
{
	struct view *view = find_view(exported->object);
	struct object_info info;
	struct range *range;
	CUresult result = CUDA_SUCCESS;

	if (!object_find(exported->object, &info) || info.kind != object_kind ||
	    !is_within(exported, &info))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!device_of(info.device))
		return CUDA_ERROR_INVALID_DEVICE;
	range = range_in(view, exported, kind);
	if (range) {
		piece_of(range)->opened++;
		*out = range;
		return CUDA_SUCCESS;
	}
	if (!view)
		result = add_view(exported->object, &info, &view);
	if (result != CUDA_SUCCESS)
		return result;
	result = add_piece(context, view, exported, kind, out);
	if (!view->pieces)
		drop_view(view);
	return result;
}

void view_close(struct range *range)
{
	struct piece *piece = piece_of(range);

	if (--piece->opened)
		return;
	context_disown(&piece->owned);
	destroy_piece(&piece->owned);
}
