package models

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/internal/fuzz"
	"reprise/internal/testprog"
	"reprise/ir"
	"reprise/ir/tensor"
	"reprise/passes/policy"
	"reprise/runtime"
)

// delicate is a state and data with which a router decides by a hair, or by nothing at all.
type delicate struct {
	name string
	// prepare changes state in place; data, if any, takes the place of the book.
	prepare func(state map[string]*tensor.Tensor)
	data    func(step *ir.Func) inputs
	// counts looks at the pairs that each expert of a block got in a step.
	counts func(t *testing.T, counts []int32)
}

// routers are the routers' weights [C, E] in a state.
func routers(state map[string]*tensor.Tensor, change func(w []float32, experts int)) {
	for name, w := range state {
		if strings.HasSuffix(name, ".router.w") {
			change(w.F32(), int(w.Shape[1]))
		}
	}
}

func biases(state map[string]*tensor.Tensor, change func(b []float32)) {
	for name, b := range state {
		if strings.HasSuffix(name, ".expert_bias") {
			change(b.F32())
		}
	}
}

func repeated(step *ir.Func) inputs {
	in := inputs{}
	for _, p := range step.Body.Params {
		if p.Role() == ir.RoleInput {
			x := fresh(p)
			for k := range x.Len() {
				x.SetBits(k, 7)
			}
			in[p.Name] = x
		}
	}
	return in
}

func anyCounts(*testing.T, []int32) {}

func total(counts []int32) (sum, most int32, empty int) {
	for _, n := range counts {
		sum, most = sum+n, max(most, n)
		if n == 0 {
			empty++
		}
	}
	return sum, most, empty
}

// delicates are the cases; biased says whether the model has biases of experts.
func delicates(biased bool, top int32) []delicate {
	keep := func(map[string]*tensor.Tensor) {}
	zero := func(w []float32, _ int) { clear(w) }
	list := []delicate{
		{"zero gate: exact ties", func(s map[string]*tensor.Tensor) { routers(s, zero) }, nil, func(t *testing.T, counts []int32) {
			sum, most, empty := total(counts)
			require.Equal(t, sum, top*most, "ties go to the first experts")
			require.Equal(t, len(counts)-int(top), empty)
		}},
		{"near ties: neighbours in the last place", func(s map[string]*tensor.Tensor) {
			routers(s, func(w []float32, experts int) {
				for r := 0; r < len(w); r += experts {
					for e := 1; e < experts; e++ {
						w[r+e] = math.Float32frombits(math.Float32bits(w[r]) + uint32(e%3) - 1)
					}
				}
			})
		}, nil, anyCounts},
		{"one repeated token", keep, repeated, anyCounts},
		{"one repeated token and a zero gate", func(s map[string]*tensor.Tensor) { routers(s, zero) }, repeated, anyCounts},
	}
	none := func(t *testing.T, counts []int32) { require.Zero(t, counts[len(counts)-1]) }
	if biased {
		return append(list, delicate{"an expert without a token", func(s map[string]*tensor.Tensor) {
			biases(s, func(b []float32) { b[len(b)-1] = -10 })
		}, nil, none}, delicate{"all tokens to one expert", func(s map[string]*tensor.Tensor) {
			biases(s, func(b []float32) { b[1] = 10 })
		}, nil, func(t *testing.T, counts []int32) {
			sum, most, _ := total(counts)
			require.Equal(t, sum, most)
			require.Equal(t, sum, counts[1])
		}})
	}
	// Logits a, a, −a, −a, 0: the last is never among the two greatest.
	return append(list, delicate{"an expert without a token", func(s map[string]*tensor.Tensor) {
		routers(s, func(w []float32, experts int) {
			for r := 0; r < len(w); r += experts {
				w[r+1], w[r+2], w[r+3], w[r+4] = w[r], -w[r], -w[r], 0
			}
		})
	}, nil, none})
}

// restricted are programs of m under policies, by themselves and within budgets: by default one in which everything in the layers is computed
// again, which for one of the models is in a budget too.
func restricted(t *testing.T, m *frontend.Model, biased bool) (programs []*testprog.Program) {
	words, budgets := []string{"full"}, []compile.Budget{{Percent: 80}}
	if biased {
		budgets[0] = compile.Budget{}
	}
	if testprog.Long() {
		words = []string{"full", "nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable", "selective:2", "every:2", "memory_budget:0.4"}
		budgets = []compile.Budget{{}, {Percent: 80}, {Min: true}}
	}
	for _, word := range words {
		pol, err := policy.Load(word)
		require.NoError(t, err)
		for _, b := range budgets {
			p := lab.Compile(t, m, compile.Options{Target: v4, Policy: pol, Budget: b})
			require.Greater(t, p.Report.Recomputed, 0, word)
			programs = append(programs, p)
		}
	}
	return programs
}

// Where routing hangs by a thread, every gradient (the first momentum is one), parameter, state and loss is
// the same at every budget, under every policy, on any number of threads and instruction set, and equal to the interpreter.
func TestDelicateRouting(t *testing.T) {
	for _, c := range []struct {
		spec   string
		biased bool
		top    int32
	}{{llama4, true, 1}, {mixed, false, 2}} {
		t.Run(name(c.spec), func(t *testing.T) {
			t.Parallel()
			all := seed(t, c.spec, v4, 0)
			m, programs := all.Model, []*testprog.Program{all, seed(t, c.spec, v3, -1)}
			programs = append(programs, restricted(t, m, c.biased)...)
			if testprog.Long() {
				lo, hi := programs[1].Report.ArenaBytes, all.Report.ArenaBytes
				programs = append(programs, compiled(t, m, v4, -1), compiled(t, m, v3, lo+(hi-lo)/3), compiled(t, m, v4, lo+(hi-lo)*2/3))
			}
			ref := testprog.Interpret(t, m)
			for _, d := range delicates(c.biased, c.top) {
				t.Run(d.name, func(t *testing.T) {
					state := maps.Clone(ref.State)
					for name, v := range state {
						state[name] = v.Clone()
					}
					d.prepare(state)
					want := d.run(t, all, 1, state)
					first := *ref
					first.State = maps.Clone(state)
					d.check(t, &first, m, want[0])
					for k, p := range programs {
						for threads := 1; threads <= 3; threads++ {
							got := d.run(t, p, threads, state)
							for s := range want {
								testprog.Same(t, m, want[s], got[s], fmt.Sprintf("program %d, %d threads, step %d", k, threads, s))
							}
						}
					}
				})
			}
		})
	}
}

// inputs are those of step s.
func (d delicate) inputs(m *frontend.Model, s int) inputs {
	if d.data != nil {
		return d.data(m.Module.Func("step"))
	}
	return book(m.Module.Func("step"), s)
}

// run runs three steps from a state.
func (d delicate) run(t *testing.T, p *testprog.Program, threads int, state map[string]*tensor.Tensor) []map[string][]byte {
	t.Helper()
	i := start(t, p, threads)
	write(t, i, state)
	var out []map[string][]byte
	for s := range 3 {
		testprog.Feed(t, i, p.Model, s, d.inputs(p.Model, s))
		require.NoError(t, i.Step())
		out = append(out, testprog.Results(t, i, p.Model))
	}
	return out
}

// check compares the first step with the interpreter, and sees that the case is what its name says.
func (d delicate) check(t *testing.T, ref *testprog.Reference, m *frontend.Model, got map[string][]byte) {
	t.Helper()
	testprog.Same(t, m, ref.Step(t, 0, d.inputs(m, 0)), got, "against the interpreter")
	for name, v := range ref.State {
		if strings.Contains(name, ".tokens") {
			d.counts(t, v.I32())
		}
	}
}

// write puts state into an instance.
func write(t testing.TB, i *runtime.Instance, state map[string]*tensor.Tensor) {
	t.Helper()
	for name, v := range state {
		require.NoError(t, i.Write(name, v.Data))
	}
}

// families are policies of every family: JAX's by kind and by name, torchtitan's by turns and by layer, PyTorch's share and
// lists, Megatron's runs, blocks and modules, Hugging Face's every K-th layer.
func families() []string {
	return []string{"dots_saveable", "selective:op", "every:2", "memory_budget:0.5", "uniform:2", "must_save:attention,contract", "selective:layernorm",
		"dots_with_no_batch_dims_saveable", "block:1", "nothing_saveable", "selective:2", "prefer_recompute:contract"}
}

// Every gradient, parameter, state and loss of the seeds' models is the same under every family of policies, by themselves and within
// budgets. By default the planned programs of smaller models run in Go, kernel by kernel, a few policies for each, of which
// every other one has a budget (compiled programs of these models under a policy and a budget are TestDelicateRouting's and
// TestFiftySteps'); in the long test all of them are compiled too, with every budget.
func TestPoliciesKeepEveryBit(t *testing.T) {
	tiny := []string{
		"qwen,layers=2,d=8,heads=2,kv_heads=1,hidden=12,seq=5,batch=2,vocab=11" + shown,
		"llama4,layers=2,d=8,heads=2,kv_heads=1,hidden=6,dense_hidden=10,experts=3,nope_every=2,seq=5,batch=2,vocab=11,jitter=0.1,bias_rate=0.01" + shown,
		"mixtral,layers=2,d=8,heads=2,kv_heads=1,hidden=6,experts=3,seq=5,batch=2,vocab=11,jitter=0.1" + shown,
	}
	for k, spec := range tiny {
		t.Run(name(spec), func(t *testing.T) {
			t.Parallel()
			m := builtin(t, spec, true)
			traced := func(o compile.Options) (results []map[string]*tensor.Tensor, launches int) {
				o.NoMinimum, o.PlanSteps, o.Target = true, 300, v3
				x, ls, err := compile.Launches(t.Context(), m, o)
				require.NoError(t, err)
				out, err := fuzz.Run(m.Module.Func("step"), x, ls, rand.New(rand.NewPCG(1, uint64(k))))
				require.NoError(t, err)
				return out, len(x.Step)
			}
			want, once := traced(compile.Options{})
			for n, word := range families() {
				if !testprog.Long() && (n%3 != k || n >= 6) {
					continue
				}
				pol, err := policy.Load(word)
				require.NoError(t, err)
				budgets := []compile.Budget{{}, {Percent: 92}, {Min: true}}
				if !testprog.Long() {
					budgets = budgets[n/3 : n/3+1]
				}
				for _, b := range budgets {
					got, launches := traced(compile.Options{Policy: pol, Budget: b})
					require.Greater(t, launches, once, "under %s nothing runs again", word)
					for s := range want {
						for _, name := range m.Module.Func("step").Results {
							require.Equal(t, want[s][name].Data, got[s][name].Data, "%s, %v, step %d: %s", word, b, s, name)
						}
					}
				}
			}
		})
	}
	if !testprog.Long() {
		return
	}
	for _, spec := range seeds() {
		t.Run("compiled "+name(spec), func(t *testing.T) {
			t.Parallel()
			all := seed(t, spec, v4, 0)
			want := delicate{}.run(t, all, 1, nil)
			for _, word := range families() {
				pol, err := policy.Load(word)
				require.NoError(t, err)
				for _, b := range []compile.Budget{{}, {Percent: 85}, {Min: true}} {
					p := lab.Compile(t, all.Model, compile.Options{Target: v4, Policy: pol, Budget: b})
					for threads := 1; threads <= 3; threads++ {
						got := delicate{}.run(t, p, threads, nil)
						for s := range want {
							testprog.Same(t, all.Model, want[s], got[s], fmt.Sprintf("%s, %v, %d threads, step %d", word, b, threads, s))
						}
					}
				}
			}
		})
	}
}
