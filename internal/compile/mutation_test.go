package compile_test

import (
	"errors"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/internal/fuzz"
	"reprise/internal/testprog"
)

// mutable are small models with everything that a plan can break: dropout, statistics, routing, loops that were
// unrolled. The last one's readers compute what they can.
func mutable() []string {
	return []string{
		"builtin:mlp,in=12,hidden=20,layers=2,batch=4,dropout=0.3",
		"builtin:gpt,layers=2,d=8,heads=2,seq=6,batch=2,vocab=11,dropout=0.2",
		"builtin:moe,layers=2,d=8,heads=2,seq=6,batch=2,experts=3,hidden=8,vocab=11,dropout=0.2",
		"builtin:cnn,size=8,width=4,batch=2,dropout=0.2",
		"builtin:lstm,batch=2,seq=3,d=8,hidden=8,vocab=11",
		"../trace/testdata/control.ir",
		"builtin:gpt,layers=2,d=8,heads=2,seq=8,batch=4,vocab=11,dropout=0.2",
	}
}

// TestMutations: 500 random changes to planned programs. The proofs find every one that changes what the program
// computes; of one that they do not find, every bit of two steps is as before.
func TestMutations(t *testing.T) {
	total := 500
	if testprog.Long() {
		total = 10000
	}
	var rare []int // kinds for which few programs give an occasion come by more often
	for i, what := range compile.Mutators() {
		if what == "clone a pinned op" || what == "move a workspace" {
			rare = append(rare, i, i)
		}
	}
	label := regexp.MustCompile(`\(([VP][0-9])\)`)
	var mu sync.Mutex
	found, harmless, kinds := map[string]int{}, 0, map[string]int{}
	done := 0
	t.Run("models", func(t *testing.T) {
		for k, spec := range mutable() {
			t.Run(name(spec), func(t *testing.T) {
				t.Parallel()
				m := testprog.Load(t, spec, strings.HasPrefix(spec, "builtin:"))
				r := rand.New(rand.NewPCG(uint64(k), 99))
				share := []float64{0, 0.3}[k%2]
				h, err := compile.NewMutable(m, share, k == len(mutable())-1)
				require.NoError(t, err)
				sound, err := h.Sound()
				require.NoError(t, err)
				require.NoError(t, sound.Found)
				want := simulated(t, m, sound)
				turns := append(r.Perm(len(compile.Mutators())), rare...)
				n, tries := (total+len(mutable())-1)/len(mutable()), 0
				for i := 0; i < n; tries++ {
					require.Less(t, tries, 20*n, "too few occasions")
					kind := turns[tries%len(turns)]
					mt, ok, err := h.Mutate(kind, r)
					require.NoError(t, err)
					if !ok {
						continue
					}
					i++
					mu.Lock()
					done++
					kinds[compile.Mutators()[kind]]++
					mu.Unlock()
					if mt.Found != nil {
						by := "layout or lowering"
						if l := label.FindAllStringSubmatch(mt.Found.Error(), -1); l != nil {
							by = l[len(l)-1][1]
						}
						var e *diag.Error
						if errors.As(mt.Found, &e) && e.Code != "bug" {
							require.True(t, e.Layer != "" || e.Op != "" || strings.Contains(e.Message, "returns %") || by == "P4" || by == "V5" || by == "P6", "%s: %v", mt.What, mt.Found)
						}
						if mt.Layer != "" && by == "P3" {
							require.True(t, mt.Layer == e.Layer || strings.Contains(e.Message, " in "+mt.Layer), "%s: %v", mt.What, mt.Found)
						}
						mu.Lock()
						found[by]++
						mu.Unlock()
						continue
					}
					// These are wrong also where every bit comes out right: what runs once ran twice, a state was not written, a
					// random op is not itself any more.
					require.NotContains(t, []string{"clone a pinned op", "drop a state write", "change an op id"}, compile.Mutators()[kind], "not found: %s", mt.What)
					got := simulated(t, m, mt)
					for s := range want {
						for n := range want[s] {
							require.True(t, slices.Equal(want[s][n], got[s][n]), "not found, and it changes %s in step %d: %s", n, s, mt.What)
						}
					}
					mu.Lock()
					harmless++
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("%d mutations, %d harmless, found by rule: %v; kinds: %v", done, harmless, found, kinds)
	require.Len(t, kinds, len(compile.Mutators()), "a kind of mutation has no occasion in these models")
}

// simulated is every result of two steps of a program.
func simulated(t *testing.T, m *frontend.Model, mt *compile.Mutant) []map[string][]byte {
	t.Helper()
	x, ls, err := mt.Launches(m)
	require.NoError(t, err, mt.What)
	res, err := fuzz.Run(m.Module.Func("step"), x, ls, rand.New(rand.NewPCG(7, 7)))
	require.NoError(t, err, mt.What)
	var out []map[string][]byte
	for _, s := range res {
		b := map[string][]byte{}
		for n, v := range s {
			b[n] = v.Data
		}
		out = append(out, b)
	}
	return out
}

// TestReadersComputeTheSame: in random programs, whatever readers compute for themselves, every result has the bits of the
// program in which nothing is fused.
func TestReadersComputeTheSame(t *testing.T) {
	seeds := uint64(70)
	if testprog.Long() {
		seeds = 3000
	}
	models, programs := 0, 0
	for seed := range seeds {
		m := &frontend.Model{Name: "random", Module: fuzz.Grow(seed)}
		vs, err := compile.Variants(m)
		var e *diag.Error
		require.False(t, err != nil && (!errors.As(err, &e) || slices.Contains([]string{"error", "verify", "pass", "bug"}, e.Code)), "seed %d: %v", seed, err)
		if len(vs) == 0 {
			continue // refused, or nothing to fuse
		}
		models++
		programs += len(vs)
		want := simulated(t, m, vs[0])
		for _, v := range vs {
			require.NoError(t, v.Found, "seed %d, %s", seed, v.What)
			require.Equal(t, want, simulated(t, m, v), "seed %d, %s", seed, v.What)
		}
	}
	t.Logf("%d programs of %d models", programs, models)
	require.Positive(t, models)
}
