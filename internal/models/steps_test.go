package models

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"reprise/internal/testprog"
	"reprise/ir"
	"reprise/ir/tensor"
)

// The models of the public reports, small and with odd sizes, noise switched on. Gradient descent with momentum
// shows every gradient: the first momentum is one.
const (
	dense  = "qwen,layers=2,d=32,heads=4,kv_heads=2,hidden=44,seq=40,batch=4,vocab=30,warmup=5,lr=0.01"
	shown  = ",optimizer=sgd,momentum=0.5,schedule=constant,lr=0.5"
	llama4 = "llama4,layers=2,d=32,heads=4,kv_heads=2,hidden=20,dense_hidden=36,experts=4,nope_every=2,seq=20,batch=12,vocab=30,jitter=0.1,micro=2,bias_rate=0.01" + shown
	mixed  = "mixtral,layers=2,d=32,heads=4,kv_heads=2,hidden=20,experts=5,seq=20,batch=6,vocab=30,jitter=0.1" + shown
)

func seeds() []string { return []string{dense, llama4, mixed} }

func name(spec string) string {
	n, _, _ := strings.Cut(spec, ",")
	return n
}

// Fifty steps at the smallest budget have the loss bits and end in the state of the run that keeps everything,
// whatever the threads and the instruction set; and the first steps are those of the interpreter.
func TestFiftySteps(t *testing.T) {
	const steps = 50
	for _, spec := range seeds() {
		t.Run(name(spec), func(t *testing.T) {
			t.Parallel()
			all := seed(t, spec, v4, 0)
			all.EqualsInterpreter(t, 1, 1)
			want := run(t, all, steps, 1)
			assert.Less(t, want.last, 0.7*want.first, "the model does not learn")
			assert.Equal(t, want, run(t, all, steps, 3), "3 threads")
			least := seed(t, spec, v3, -1)
			assert.Less(t, 4*least.Report.ArenaBytes, 3*all.Report.ArenaBytes)
			assert.Greater(t, least.Report.Recomputed, 30)
			least.EqualsInterpreter(t, 2, 2)
			assert.Equal(t, want, run(t, least, steps, 2), "the smallest budget on %s", v3)
			if spec == dense { // of the others TestDelicateRouting has programs under policies
				for k, p := range restricted(t, all.Model, false) {
					assert.Equal(t, want, run(t, p, steps, 1+k%3), "under a policy, program %d", k)
				}
			}
			if !testprog.Long() {
				return
			}
			lo, hi := least.Report.ArenaBytes, all.Report.ArenaBytes
			for _, target := range []string{v3, v4} {
				for k := range int64(5) {
					p := compiled(t, all.Model, target, lo+(hi-lo)*k/4)
					for threads := 1; threads <= 3; threads++ {
						assert.Equal(t, want, run(t, p, steps, threads), "budget %d of 5 on %s, %d threads", k, target, threads)
					}
				}
			}
		})
	}
}

// The element types that a model has as an option, in training with everything that is state: micro-batches,
// a moving average, a loss scale; and in inference.
func TestElementTypes(t *testing.T) {
	specs := []string{
		"gpt,layers=1,d=32,heads=2,seq=20,batch=2,vocab=40,dtype=bf16,micro=2,ema=0.9",
		"llama,layers=1,d=32,heads=4,kv_heads=2,seq=16,batch=2,vocab=33,dtype=f16,loss_scale=1024",
	}
	if testprog.Long() {
		for _, spec := range seeds() {
			for _, d := range []string{"f32", "f16"} {
				specs = append(specs, spec+",dtype="+d+",loss_scale=256,ema=0.5")
			}
		}
		specs = append(specs, "moe,layers=1,d=24,heads=2,seq=12,batch=2,vocab=30,hidden=20,experts=4,dtype=bf16,jitter=0.1",
			"qwen,layers=1,d=32,heads=4,kv_heads=2,seq=16,batch=2,vocab=33,tied=no",
			"llama4,layers=2,d=32,heads=4,kv_heads=2,hidden=20,experts=4,seq=12,batch=2,vocab=30,moe_every=2,top=2")
	}
	for k, spec := range specs {
		t.Run(spec, func(t *testing.T) {
			t.Parallel()
			m := builtin(t, spec, true)
			compiled(t, m, []string{v3, v4}[k%2], -1).EqualsInterpreter(t, 2, 2)
			if testprog.Long() {
				compiled(t, builtin(t, spec, false), []string{v4, v3}[k%2], -1).EqualsInterpreter(t, 1, 2)
				compiled(t, m, []string{v4, v3}[k%2], 0).EqualsInterpreter(t, 2, 3)
			}
		})
	}
}

// book is step s of a text that repeats: tokens and targets.
func book(step *ir.Func, s int) inputs {
	return inputs{"tokens": page(step.Param("tokens"), s, 0), "targets": page(step.Param("targets"), s, 1)}
}

// page is what an input of tokens [B, T] below 30 is fed in step s; after tells how many positions later it is.
func page(p *ir.Value, s, after int) *tensor.Tensor {
	const text = "the quick brown fox jumps over the lazy dog; "
	const symbols = "abcdefghijklmnopqrstuvwxyz ;"
	x := fresh(p)
	for k, T := int64(0), x.Shape[1]; k < x.Len(); k++ {
		at := s*7 + int(k/T)*13 + int(k%T) + after
		x.SetBits(k, uint64(strings.IndexByte(symbols, text[at%len(text)])))
	}
	return x
}
