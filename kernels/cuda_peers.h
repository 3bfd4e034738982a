/* cuda_peers.h - the peers of the CUDA device, for peers.c. Private to kernels.
 *
 * Apart from kernels/cuda/, which needs the headers of CUDA: a build without the toolkit compiles
 * peers.c too, and then nothing calls these. */
#ifndef PLIMSOLL_KERNELS_CUDA_PEERS_H
#define PLIMSOLL_KERNELS_CUDA_PEERS_H

#include "kernels/peers.h"

void cuda_peers_card(struct device *device, struct peers_card *out);
enum status cuda_peers_new_key(struct device *device, char key[PEERS_KEY_BYTES], struct err *e);
enum status cuda_peers_open(struct device_peers **out, struct device *device,
                            const struct peers_place *place, int64_t *bytes, struct err *e);
void cuda_peers_close(struct device_peers *peers, bool in_order);
enum status cuda_peers_sum(struct device_peers *peers, const struct peers_data *data, int64_t count,
                           struct err *e);
enum status cuda_peers_sum_pieces(struct device_peers *peers, const struct peers_data *data,
                                  const struct peers_piece *pieces, struct err *e);
enum status cuda_peers_share_pieces(struct device_peers *peers, const struct peers_data *data,
                                    const struct peers_piece *pieces, struct err *e);
enum status cuda_peers_exchange(struct device_peers *peers, const struct peers_message *messages,
                                int64_t count, struct err *e);
enum status cuda_peers_aside(struct device_peers *peers, struct err *e);
enum status cuda_peers_aside_end(struct device_peers *peers, int64_t *ticket, struct err *e);
enum status cuda_peers_wait(struct device_peers *peers, int64_t ticket, struct err *e);
enum status cuda_peers_check(struct device_peers *peers, struct err *e);

#endif
