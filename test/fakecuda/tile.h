/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_TILE_H
#define FAKECUDA_TILE_H

struct tiles;

/* Unmaps all tiles; NULL is accepted. */
void tiles_free(struct tiles *tiles);

#endif
