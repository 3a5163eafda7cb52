/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_MULTICAST_H
#define FAKECUDA_MULTICAST_H

struct multicast;

/* Unbinds all that is bound, once neither a handle nor a mapping of the object is left. */
void multicast_end(struct multicast *multicast);

#endif
