package models

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/internal/testprog"
	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

// A compiled program that is given a token a step, and keeps keys and values as state, gives at each position
// the logits of the program that sees all tokens, bit for bit. Each step writes one position of the cache: what
// stood there before the step is still there after it.
func TestCache(t *testing.T) {
	specs := []string{"gpt,layers=2,d=32,heads=2,seq=70,batch=2,vocab=30"}
	if testprog.Long() {
		specs = append(specs, "llama,layers=2,d=32,heads=4,kv_heads=2,seq=70,batch=2,vocab=30,dtype=f16")
		for _, spec := range seeds() {
			specs = append(specs, spec+",dtype=bf16")
		}
	}
	for k, spec := range specs {
		t.Run(name(spec), func(t *testing.T) {
			t.Parallel()
			all, step := builtin(t, spec, false), builtin(t, spec+",predict=step", false)
			i, j := start(t, compiled(t, all, v3, 0), 2), start(t, compiled(t, step, []string{v4, v3}[k%2], -1), 2)
			tokens := page(all.Module.Func("step").Param("tokens"), 0, 0)
			testprog.Feed(t, i, all, 0, inputs{"tokens": tokens})
			require.NoError(t, i.Step())
			want := f32(t, i, "logits")
			B, T := tokens.Shape[0], tokens.Shape[1]
			V := int64(len(want)) / (B * T)
			caches := map[string]int64{} // bytes of a position, by name
			for _, p := range step.Module.Func("step").Body.Params {
				if p.Type.Rank() == 4 {
					caches[p.Name] = p.Type.Bytes() / (B * T)
				}
			}
			require.NotEmpty(t, caches)
			before := map[string][]byte{}
			for s := range T + 3 {
				at := s % T
				x := tensor.New(dtype.I32, B, 1)
				for b := range B {
					x.I32()[b] = tokens.I32()[b*T+at]
				}
				require.Equal(t, at, integer(t, j, "position"))
				testprog.Feed(t, j, step, int(s), inputs{"tokens": x})
				require.NoError(t, j.Step())
				got := f32(t, j, "logits")
				for b := range B {
					require.Equal(t, want[(b*T+at)*V:(b*T+at+1)*V], got[b*V:(b+1)*V], fmt.Sprintf("sequence %d, step %d", b, s))
				}
				for name, row := range caches {
					now, err := j.Read(name)
					require.NoError(t, err)
					for k := int64(0); s > 0 && k < B*T; k++ {
						if k%T != at {
							require.Equal(t, before[name][k*row:(k+1)*row], now[k*row:(k+1)*row], "%s, position %d in step %d", name, k%T, s)
						}
					}
					before[name] = now
				}
			}
		})
	}
}
