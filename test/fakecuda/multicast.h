/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_MULTICAST_H
#define FAKECUDA_MULTICAST_H

struct multicast;

/* Unbinds all memory, after the object's last handle and mapping. */
void multicast_end(struct multicast *multicast);

#endif
