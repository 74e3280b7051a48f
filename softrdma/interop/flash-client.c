/*
 * A client of a flashnet target over plain rdma_cm and verbs: nothing but the control protocol is known to it.
 *
 *   flash-client [-t TOKEN] HOST PORT /path work      write and read the file by one-sided operations, then a wrong STag
 *   flash-client [-t TOKEN] HOST PORT /path read      read what `work` has left
 *   flash-client [-t TOKEN] HOST PORT STAG:TO read    the same through a region that was opened before: nothing is asked
 *   flash-client [-t TOKEN] HOST PORT /path sync N    N writes through the sync STag, "durable I" after each, then do nothing
 *
 * The file gets FILE_BYTES bytes; byte i is pattern(i). With `sync`, write I fills block I. STAG and TO are hexadecimal.
 *
 * TOKEN is a file with the private data of the connection request, in hexadecimal: a token, as `flashnet token make` writes it.
 * The program says why a target has refused a connection, and ends with REFUSED.
 */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

enum {
	FILE_BYTES = 1 << 20,
	BLOCK = 4096,
	MESSAGE = 4096,
	DEPTH = 16,
	OP_OPEN = 1,
	OP_CLOSE = 2,
	FLAG_WRITE = 1,
	FLAG_CREATE = 2,
	FLAG_TRUNCATE = 4,
	/* Exit status when the target has told why it does not let us in. */
	REFUSED = 3,
};

/* Where the target is, and what we say of ourselves there. */
struct door {
	const char *host, *port;
	/* No more fits into `private_data_len`. */
	unsigned char token[UINT8_MAX];
	uint8_t token_bytes;
};

/* Private data of a refusal. */
struct denial {
	char magic[4];
	uint16_t code;
} __attribute__((packed));

struct request {
	uint32_t magic;
	uint16_t op, flags;
	uint64_t id, offset, length;
	uint32_t handle;
	uint16_t path_bytes, reserved;
} __attribute__((packed));

struct reply {
	uint32_t magic;
	uint16_t op, status;
	uint64_t id;
	uint32_t handle, mode, stag, stag_sync;
	uint64_t to, length, size, mtime_ns, cookie;
	uint16_t entries, payload_bytes;
	uint32_t reserved;
} __attribute__((packed));

struct session {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	/* request, reply, data to write, data read */
	struct {
		char request[MESSAGE];
		char reply[MESSAGE];
		unsigned char out[FILE_BYTES];
		unsigned char in[FILE_BYTES];
	} *memory;
	uint32_t handle, stag, stag_sync;
	uint64_t to;
};

static void die(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	exit(1);
}

static void check(int failed, const char *what)
{
	if (failed)
		die(what);
}

static unsigned char pattern(size_t i)
{
	return (unsigned char)(i * 7 + i / 251 + 1);
}

/* What `work` leaves. */
static void fill_out(struct session *s)
{
	for (size_t i = 0; i < FILE_BYTES; i++)
		s->memory->out[i] = i < FILE_BYTES - BLOCK ? pattern(i) : (unsigned char)~pattern(i);
}

/* Says why, if it is the target that refuses: another peer, or a kernel, may reject with anything. */
static void refused(const struct rdma_cm_event *event)
{
	const struct rdma_conn_param *said = &event->param.conn;
	struct denial denial;

	if (said->private_data_len != sizeof(denial) || memcmp(said->private_data, "FNE1", 4)) {
		printf("%s: %u bytes of private data\n", rdma_event_str(event->event), said->private_data_len);
		exit(1);
	}
	memcpy(&denial, said->private_data, sizeof(denial));
	printf("%s: FNE1, code %u\n", rdma_event_str(event->event), be16toh(denial.code));
	exit(REFUSED);
}

static void wait_for(struct session *s, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *event;

	check(rdma_get_cm_event(s->channel, &event), "rdma_get_cm_event");
	if (event->event == RDMA_CM_EVENT_REJECTED)
		refused(event);
	if (event->event != want) {
		printf("%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(want));
		exit(1);
	}
	rdma_ack_cm_event(event);
}

static void post_receive(struct session *s)
{
	struct ibv_sge sge = { (uintptr_t)s->memory->reply, MESSAGE, s->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	errno = ibv_post_recv(s->id->qp, &wr, &bad);
	check(errno, "ibv_post_recv");
}

static struct session *connect_to(const struct door *door)
{
	struct session *s = calloc(1, sizeof(*s));
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_conn_param parameters = {
		.private_data = door->token, .private_data_len = door->token_bytes,
		.responder_resources = 1, .initiator_depth = DEPTH, .retry_count = 7,
	};
	struct addrinfo *address;

	check(getaddrinfo(door->host, door->port, NULL, &address), "getaddrinfo");
	check(!(s->channel = rdma_create_event_channel()), "rdma_create_event_channel");
	check(rdma_create_id(s->channel, &s->id, s, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_resolve_addr(s->id, NULL, address->ai_addr, 2000), "rdma_resolve_addr");
	wait_for(s, RDMA_CM_EVENT_ADDR_RESOLVED);
	check(rdma_resolve_route(s->id, 2000), "rdma_resolve_route");
	wait_for(s, RDMA_CM_EVENT_ROUTE_RESOLVED);
	freeaddrinfo(address);

	check(!(s->pd = ibv_alloc_pd(s->id->verbs)), "ibv_alloc_pd");
	check(!(s->cq = ibv_create_cq(s->id->verbs, 2 * DEPTH, NULL, NULL, 0)), "ibv_create_cq");
	attributes.send_cq = attributes.recv_cq = s->cq;
	check(rdma_create_qp(s->id, s->pd, &attributes), "rdma_create_qp");
	check(posix_memalign((void **)&s->memory, BLOCK, sizeof(*s->memory)), "posix_memalign");
	memset(s->memory, 0, sizeof(*s->memory));
	/* The sink of a READ is written by the peer, so to speak. */
	s->mr = ibv_reg_mr(s->pd, s->memory, sizeof(*s->memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	check(!s->mr, "ibv_reg_mr");
	post_receive(s);
	check(rdma_connect(s->id, &parameters), "rdma_connect");
	wait_for(s, RDMA_CM_EVENT_ESTABLISHED);
	return s;
}

/* The next completion; its status. */
static enum ibv_wc_status completion(struct session *s)
{
	struct ibv_wc wc;
	int found;

	while (!(found = ibv_poll_cq(s->cq, 1, &wc)))
		;
	check(found < 0, "ibv_poll_cq");
	return wc.status;
}

static void expect_success(struct session *s, const char *what)
{
	enum ibv_wc_status status = completion(s);

	if (status != IBV_WC_SUCCESS) {
		printf("%s: %s\n", what, ibv_wc_status_str(status));
		exit(1);
	}
}

static void post(struct session *s, enum ibv_wr_opcode opcode, void *local, uint32_t bytes, uint32_t stag, uint64_t to)
{
	struct ibv_sge sge = { (uintptr_t)local, bytes, s->mr->lkey };
	struct ibv_send_wr wr = {
		.opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
		.wr.rdma = { .rkey = stag, .remote_addr = to },
	}, *bad;

	errno = ibv_post_send(s->id->qp, &wr, &bad);
	check(errno, "ibv_post_send");
}

/* When a READ of no bytes is done, every WRITE before it is visible; and durable, if it used the sync STag. */
static void fence(struct session *s)
{
	post(s, IBV_WR_RDMA_READ, s->memory->in, 0, s->stag, s->to);
	expect_success(s, "READ of no bytes");
}

static struct reply ask(struct session *s, uint16_t op, uint16_t flags, uint64_t length, const char *path)
{
	struct request *request = (struct request *)s->memory->request;
	struct reply reply;

	memset(request, 0, sizeof(*request));
	request->magic = htobe32(0x464e5131);	/* "FNQ1" */
	request->op = htobe16(op);
	request->flags = htobe16(flags);
	request->id = htobe64(4711);
	request->length = htobe64(length);
	request->handle = htobe32(s->handle);
	request->path_bytes = htobe16(strlen(path));
	memcpy(request + 1, path, strlen(path));
	post(s, IBV_WR_SEND, request, sizeof(*request) + strlen(path), 0, 0);
	/* Two completions, in either order. */
	expect_success(s, "SEND or receive");
	expect_success(s, "SEND or receive");
	memcpy(&reply, s->memory->reply, sizeof(reply));
	if (be32toh(reply.magic) != 0x464e5231 || be64toh(reply.id) != 4711 || reply.status) {
		printf("refused: status %u, %.*s\n", be16toh(reply.status), be16toh(reply.payload_bytes),
		       s->memory->reply + sizeof(reply));
		exit(1);
	}
	post_receive(s);
	return reply;
}

static void open_file(struct session *s, const char *path, uint16_t flags)
{
	struct reply reply = ask(s, OP_OPEN, flags, flags & FLAG_TRUNCATE ? FILE_BYTES : 0, path);

	if (be64toh(reply.length) != FILE_BYTES || !reply.stag_sync) {
		printf("a region of %llu bytes\n", (unsigned long long)be64toh(reply.length));
		exit(1);
	}
	s->handle = be32toh(reply.handle);
	s->stag = be32toh(reply.stag);
	s->stag_sync = be32toh(reply.stag_sync);
	s->to = be64toh(reply.to);
}

static void disconnect(struct session *s)
{
	check(rdma_disconnect(s->id), "rdma_disconnect");
	wait_for(s, RDMA_CM_EVENT_DISCONNECTED);
}

static void read_and_compare(struct session *s, size_t at, size_t bytes)
{
	memset(s->memory->in + at, 0xee, bytes);
	post(s, IBV_WR_RDMA_READ, s->memory->in + at, bytes, s->stag, s->to + at);
	expect_success(s, "READ");
	if (memcmp(s->memory->in + at, s->memory->out + at, bytes)) {
		printf("%zu bytes at %zu are not those written\n", bytes, at);
		exit(1);
	}
}

/* An operation with an STag that does not exist ends in an error, and with it the connection; nothing else. */
static void try_wrong_stag(const struct door *door, const char *path, enum ibv_wr_opcode opcode)
{
	struct session *s = connect_to(door);
	enum ibv_wc_status status;

	open_file(s, path, FLAG_WRITE);
	post(s, opcode, s->memory->in, BLOCK, s->stag ^ 0x5a5a5a00, s->to);
	status = completion(s);
	if (opcode == IBV_WR_RDMA_WRITE && status == IBV_WC_SUCCESS) {
		/* The WRITE was handed over; what comes behind it learns of its end. */
		post(s, IBV_WR_RDMA_READ, s->memory->in, 0, s->stag, s->to);
		do
			status = completion(s);
		while (status == IBV_WC_SUCCESS);
	}
	if (status == IBV_WC_SUCCESS) {
		printf("a wrong STag works\n");
		exit(1);
	}
	wait_for(s, RDMA_CM_EVENT_DISCONNECTED);
	printf("wrong STag: %s\n", ibv_wc_status_str(status));
}

static void work(const struct door *door, const char *path)
{
	static const size_t sizes[] = { 1, 13, BLOCK, 65536, FILE_BYTES - 1 - 13 - BLOCK - 65536 };
	struct session *s = connect_to(door);
	size_t at = 0;

	for (size_t i = 0; i < FILE_BYTES; i++)
		s->memory->out[i] = pattern(i);
	open_file(s, path, FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); at += sizes[i++]) {
		post(s, IBV_WR_RDMA_WRITE, s->memory->out + at, sizes[i], s->stag, s->to + at);
		expect_success(s, "WRITE");
	}
	fence(s);
	printf("written\n");
	read_and_compare(s, 0, FILE_BYTES);
	read_and_compare(s, 1, 13);
	read_and_compare(s, FILE_BYTES - 1, 1);

	/* The last block once more, otherwise, and durable. */
	fill_out(s);
	post(s, IBV_WR_RDMA_WRITE, s->memory->out + FILE_BYTES - BLOCK, BLOCK, s->stag_sync, s->to + FILE_BYTES - BLOCK);
	expect_success(s, "WRITE through the sync STag");
	fence(s);
	printf("durable\n");

	try_wrong_stag(door, path, IBV_WR_RDMA_READ);
	try_wrong_stag(door, path, IBV_WR_RDMA_WRITE);
	read_and_compare(s, 0, FILE_BYTES);
	ask(s, OP_CLOSE, 0, 0, "");
	disconnect(s);
	printf("done\n");
}

/* `what` is a path, or STAG:TO. */
static void read_file(const struct door *door, const char *what)
{
	struct session *s = connect_to(door);
	unsigned long long to;

	if (*what == '/')
		open_file(s, what, 0);
	else if (sscanf(what, "%" SCNx32 ":%llx", &s->stag, &to) == 2)
		s->to = to;
	else {
		printf("%s: neither a path nor STAG:TO\n", what);
		exit(2);
	}
	fill_out(s);
	read_and_compare(s, 0, FILE_BYTES);
	disconnect(s);
	printf("done\n");
}

static void sync_writes(const struct door *door, const char *path, int count)
{
	struct session *s = connect_to(door);

	open_file(s, path, FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE);
	for (int i = 0; i < count; i++) {
		size_t at = (size_t)i * BLOCK;

		for (size_t j = at; j < at + BLOCK; j++)
			s->memory->out[j] = pattern(j);
		post(s, IBV_WR_RDMA_WRITE, s->memory->out + at, BLOCK, s->stag_sync, s->to + at);
		expect_success(s, "WRITE through the sync STag");
		fence(s);
		printf("durable %d\n", i);
	}
	/* Whoever reads this ends the target, and not in order: nothing of ours must come behind it. */
	pause();
}

static void read_token(struct door *door, const char *name)
{
	FILE *file = fopen(name, "r");
	unsigned char byte;

	check(!file, name);
	while (fscanf(file, "%2hhx", &byte) == 1) {
		if (door->token_bytes == sizeof(door->token)) {
			printf("%s: too long for private data\n", name);
			exit(2);
		}
		door->token[door->token_bytes++] = byte;
	}
	if (!feof(file)) {
		printf("%s: not hexadecimal\n", name);
		exit(2);
	}
	fclose(file);
}

int main(int argc, char **argv)
{
	const char *program = argv[0];
	struct door door = { 0 };

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 2 && !strcmp(argv[1], "-t")) {
		read_token(&door, argv[2]);
		argv += 2;
		argc -= 2;
	}
	if (argc > 2) {
		door.host = argv[1];
		door.port = argv[2];
	}
	if (argc == 5 && !strcmp(argv[4], "work"))
		work(&door, argv[3]);
	else if (argc == 5 && !strcmp(argv[4], "read"))
		read_file(&door, argv[3]);
	else if (argc == 6 && !strcmp(argv[4], "sync") && atoi(argv[5]) > 0 && atoi(argv[5]) <= FILE_BYTES / BLOCK)
		sync_writes(&door, argv[3], atoi(argv[5]));
	else {
		printf("usage: %s [-t TOKEN] HOST PORT PATH work | read | sync N\n", program);
		return 2;
	}
	return 0;
}
