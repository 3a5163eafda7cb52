/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_TRY_H
#define FAKECUDA_TRY_H

/* Returns the error of a call, if it has one, from the calling function. */
#define TRY(call)                                                                                  \
	do {                                                                                       \
		__typeof__(call) tried_ = (call);                                                  \
                                                                                                   \
		if (tried_)                                                                        \
			return tried_;                                                             \
	} while (0)

#endif
