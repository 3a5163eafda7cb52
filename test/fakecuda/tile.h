/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_TILE_H
#define FAKECUDA_TILE_H

struct tiles;

/* Unmaps all; NULL is none. */
void tiles_free(struct tiles *tiles);

#endif
