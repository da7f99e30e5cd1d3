package reports

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/ir"
	"reprise/ir/dtype"
)

// ranksC are collectives of two ranks that are two instances in this process, each with its own program, arena, data and
// threads: as foreign kernels of effect comm, in which the ranks meet. What they were called with is held against each
// other, so that ranks that disagree are found where others would hang.
const ranksC = `
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include "reprise_foreign.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t both = PTHREAD_COND_INITIALIZER;
static const char *given[2], *who[2];
static int arrived, calls[2], wrong;
static unsigned long turn;

int ranks_calls(int rank) { return calls[rank]; }
int ranks_wrong(void) { return wrong; }
void ranks_reset(void) { calls[0] = calls[1] = wrong = arrived = 0; }

static void meet(int rank, const char *x, const char *name) {
    pthread_mutex_lock(&lock);
    if (x != NULL) given[rank] = x, who[rank] = name;
    unsigned long mine = turn;
    if (++arrived == 2) {
        if (x != NULL && strcmp(who[0], who[1]) != 0) wrong++;
        arrived = 0, turn++;
        pthread_cond_broadcast(&both);
    }
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 60;
    while (turn == mine)
        if (pthread_cond_timedwait(&both, &lock, &end) == ETIMEDOUT) { /* the other rank does something else */
            wrong++, arrived = 0, turn++;
            break;
        }
    pthread_mutex_unlock(&lock);
}

/* What both collectives do around their work: rank is the second operand. */
static int enter(char *const *args) {
    const reprise_call *call = (const reprise_call *)args[0];
    int rank = *(const int32_t *)args[2] & 1;
    calls[rank]++;
    meet(rank, args[1], call->variant);
    return rank;
}
static void leave(int rank) { meet(rank, NULL, NULL); } /* the other has read what it was given */

/* y = x of rank 0 + x of rank 1 */
void sum2(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    (void)lo, (void)hi, (void)scratch;
    int rank = enter(args);
    const float *a = (const float *)given[0], *b = (const float *)given[1];
    float *y = (float *)args[3];
    for (int64_t i = 0; i < reprise_elements(&call->arrays[0]); i++) y[i] = a[i] + b[i];
    leave(rank);
}

/* y = x of rank 0, then x of rank 1, along the first dimension */
void gather2(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    size_t n = (size_t)((const reprise_call *)args[0])->arrays[0].bytes;
    (void)lo, (void)hi, (void)scratch;
    int rank = enter(args);
    memcpy(args[3], given[0], n);
    memcpy(args[3] + n, given[1], n);
    leave(rank);
}
/* x, rank, y, dy: dx = the rank's half of both ranks' dy, added */
void gather2_vjp(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    (void)lo, (void)hi, (void)scratch;
    int rank = *(const int32_t *)args[2] & 1;
    int64_t n = reprise_elements(&call->arrays[0]);
    calls[rank]++;
    meet(rank, args[4], call->variant);
    const float *a = (const float *)given[0] + rank * n, *b = (const float *)given[1] + rank * n;
    float *dx = (float *)args[5];
    for (int64_t i = 0; i < n; i++) dx[i] = a[i] + b[i];
    leave(rank);
}

/* y = the rank's half of x of rank 0, then that of rank 1 */
void swap2(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    size_t n = (size_t)((const reprise_call *)args[0])->arrays[0].bytes / 2;
    (void)lo, (void)hi, (void)scratch;
    int rank = enter(args);
    memcpy(args[3], given[0] + rank * n, n);
    memcpy(args[3] + n, given[1] + rank * n, n);
    leave(rank);
}
void swap2_vjp(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    size_t n = (size_t)((const reprise_call *)args[0])->arrays[0].bytes / 2;
    (void)lo, (void)hi, (void)scratch;
    int rank = *(const int32_t *)args[2] & 1;
    calls[rank]++;
    meet(rank, args[4], ((const reprise_call *)args[0])->variant);
    memcpy(args[5], given[0] + rank * n, n);
    memcpy(args[5] + n, given[1] + rank * n, n);
    leave(rank);
}
`

// ranksLibrary is the library of ranksC, compiled once.
var ranksLibrary = sync.OnceValues(func() (string, error) {
	dir, err := lab.Dir()
	if err != nil {
		return "", err
	}
	src, lib := filepath.Join(dir, "ranks.c"), filepath.Join(dir, "libranks.so")
	if err := os.WriteFile(src, []byte(ranksC), 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command("clang-19", "-std=gnu11", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-I", "../../runtime/native/src", "-o", lib, src)
	cmd.Stderr = os.Stderr
	return lib, cmd.Run()
})

// collective calls a collective of ranksC on x; name is what the ranks are held to.
func collective(s *nn.Scope, symbol, name string, x, rank *nn.Tensor) *nn.Tensor {
	lib, err := ranksLibrary()
	if err != nil {
		panic(err)
	}
	f := nn.Foreign{Library: lib, Symbol: symbol, Determinism: "exact", Effect: "comm", Variant: name, CostNs: 1000}
	result := x.Type
	switch symbol {
	case "gather2":
		result = ir.T(x.Type.DType, append([]int64{2 * x.Type.Shape[0]}, x.Type.Shape[1:]...)...)
		fallthrough
	case "swap2":
		f.VJP = symbol + "_vjp"
	}
	return s.Foreign(f, []ir.Type{result}, x, rank)[0]
}

// rankInput is the number of the rank, for two micro-batches if need be.
func rankInput(s *nn.Scope) *nn.Tensor {
	return s.Input("rank", dtype.I32, []int64{2}, nn.Feed("zeros"))
}

// meeting runs two ranks' programs at once, and returns what each shows, how many collectives each took part in, and
// how often they disagreed on which.
func meeting(t testing.TB, a, b *frontendModel, s setup) (ranks [2]*outcome, calls [2]int, disagreed int) {
	t.Helper()
	lib, err := ranksLibrary()
	require.NoError(t, err)
	h, err := purego.Dlopen(lib, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	defer func() { require.NoError(t, purego.Dlclose(h)) }()
	var reset func()
	var took func(rank int32) int32
	var wrong func() int32
	purego.RegisterLibFunc(&reset, h, "ranks_reset")
	purego.RegisterLibFunc(&took, h, "ranks_calls")
	purego.RegisterLibFunc(&wrong, h, "ranks_wrong")
	reset()
	var wait sync.WaitGroup
	for rank, m := range []*frontendModel{a, b} {
		p := lab.Compile(t, m, s.Options)
		o := &outcome{t: t, m: m, p: p.Program, lib: p.Library, rank: rank}
		ranks[rank] = o
		wait.Go(func() { o.again(s) })
	}
	wait.Wait()
	return ranks, [2]int{int(took(0)), int(took(1))}, int(wrong())
}

// together is meeting for ranks that agree: it returns how many collectives each took part in.
func together(t testing.TB, a, b *frontendModel, s setup) (ranks [2]*outcome, calls int) {
	t.Helper()
	ranks, took, disagreed := meeting(t, a, b, s)
	require.Zero(t, disagreed, "the ranks disagree on a collective")
	require.Equal(t, took[0], took[1])
	for _, o := range ranks {
		o.promises()
	}
	return ranks, took[0]
}

// rankBytes is rank as an input.
func rankBytes(rank int) []byte {
	return bytes.Repeat(binary.LittleEndian.AppendUint32(nil, uint32(rank)), 2)
}

// TestRanksDisagree: the tests of several ranks would find ranks that take part in different collectives.
func TestRanksDisagree(t *testing.T) {
	model := func(name string) *frontendModel {
		return trained(t, "disagree"+name, func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{4, 4}, nn.Normal01)
			y := collective(s.In("sum"), "sum2", name, s.Op("stop_gradient", []*nn.Tensor{x}), rankInput(s))
			return meanSquare(s, s.Add(s.MatMul(x, s.Param("w", []int64{4, 4}, nn.Normal(0.2))), y))
		})
	}
	_, _, disagreed := meeting(t, model("a"), model("b"), setup{steps: 1})
	assert.Positive(t, disagreed)
}
