package compile

import (
	"fmt"

	"reprise/codegen/cpu"
	"reprise/ir"
	"reprise/ir/kern"
	"reprise/passes/buffer"
	"reprise/passes/lower"
)

// costs estimates what an op takes on two cores, from its shapes alone, so that plans do not
// depend on the machine that compiles. Rates are round figures for such machines (docs/rationale.md).
type costs struct {
	reads map[string][2]float64 // of contractions with prologues: how often each operand's element is computed
}

func newCosts() *costs { return &costs{map[string][2]float64{}} }

// Rates of two cores of a current server, in picoseconds.
const (
	psPerByte     = 40     // memory traffic, whatever the number of cores
	psPerFlop     = 6      // packed contraction: 167 GFLOP/s on two cores
	psPerFlopSlow = 12     // attention's block products
	psPerCheap    = 25     // one element of an add or a select
	psPerCostly   = 300    // one element of exp, tanh, a division or a random draw
	psPerLaunch   = 3e6    // a barrier and a start
	psPerIndirect = 400    // one element of a gather, scatter or sort step
	costThreads   = 2      // the cores that costs are about
	costTarget    = cpu.V4 // their instruction set: plans are the same for every target
)

// Nanoseconds of one run.
func (c *costs) Nanoseconds(op *ir.Op, l *lower.Lowered) int64 {
	if ns := op.Attrs.Int("cost_ns"); op.Name() == "foreign" && ns >= 0 {
		return max(1, ns)
	}
	ps := int64(psPerLaunch)
	var bytes int64
	for _, v := range op.Operands {
		bytes += v.Type.Bytes()
	}
	for _, v := range op.Results {
		bytes += v.Type.Bytes()
	}
	ps += bytes * psPerByte
	body := []*ir.Op{op}
	if op.Name() == "fused" {
		body = op.Regions[0].Ops
	}
	times := c.times(body, l)
	for _, o := range body {
		ps += int64(float64(opWork(o)) * max(1, times[o]))
	}
	for _, launch := range l.Launches {
		switch {
		case launch.Contract != nil:
			k := launch.Contract
			n := 2 * k.M.Size * k.N.Size
			for _, a := range k.Batch {
				n *= a.Size
			}
			for _, a := range k.K {
				n *= a.Size
			}
			ps += n * psPerFlop
		case launch.Conv != nil:
			c := launch.Conv
			n := 2 * c.Batch * c.Channels * c.InChannels
			for _, d := range c.Spatial {
				n *= d.Kernel * d.Out
			}
			ps += n * psPerFlopSlow
		case launch.Attention != nil:
			a := launch.Attention
			n := 4 * a.Batch * a.Heads * a.Tq * a.Tk * a.Dim
			if a.Backward {
				n = n * 5 / 2
			}
			if a.Causal && a.Tq == a.Tk {
				n = n * 5 / 8
			}
			ps += n*psPerFlopSlow + a.Batch*a.Heads*a.Tq*a.Tk*psPerCostly
		}
	}
	if op.Name() == "while" {
		// The number of rounds is not known: a run counts as many.
		ps *= 16
	}
	return max(1, ps/1000)
}

// times is how often the elements of ops are computed that make a contraction's operand while it is
// packed: as often as they are packed, by all workers together.
func (c *costs) times(body []*ir.Op, l *lower.Lowered) map[*ir.Op]float64 {
	if len(l.Launches) != 1 || l.Launches[0].Contract == nil {
		return nil
	}
	k := l.Launches[0].Contract
	if k.ProA == nil && k.ProB == nil {
		return nil
	}
	key := fmt.Sprint(k.A, k.B, k.Acc, k.Out, k.Batch, k.M, k.N, k.K, k.Epilogue != nil)
	for _, p := range []*kern.Prologue{k.ProA, k.ProB} {
		if p != nil {
			key += fmt.Sprint(" ", p.AlongK, p.Flops)
		} else {
			key += " -"
		}
	}
	reads, ok := c.reads[key]
	if !ok {
		a, b, err := cpu.ContractReads(k, costTarget, costThreads)
		if err != nil {
			a, b = 1, 1 // the emitter reports it with the op's name
		}
		reads = [2]float64{a, b}
		c.reads[key] = reads
	}
	out := map[*ir.Op]float64{}
	var mark func(v *ir.Value, n float64)
	mark = func(v *ir.Value, n float64) {
		if v.Op != nil && out[v.Op] < n {
			out[v.Op] = n
			for _, x := range v.Op.Operands {
				mark(x, n)
			}
		}
	}
	for _, o := range body {
		if o.Name() == "contract" {
			mark(o.Operands[0], reads[0])
			mark(o.Operands[1], reads[1])
		}
	}
	return out
}

// opWork is the arithmetic of an elementwise op, in picoseconds.
func opWork(op *ir.Op) int64 {
	if len(op.Results) == 0 {
		return 0
	}
	n := op.Out(0).Len()
	switch op.Name() {
	case "constant", "broadcast", "reshape", "iota", "contract", "attention", "attention_grad", "slice", "transpose", "copy":
		return 0
	case "exp", "log", "tanh", "erf", "logistic", "div", "sqrt", "rsqrt", "pow", "sin", "cos", "expm1", "log1p", "dropout", "uniform", "normal", "rng_bits":
		return n * psPerCostly
	case "reduce":
		return op.In(0).Len() * psPerCheap
	case "add", "sub", "mul", "neg", "abs", "max", "min", "select", "compare", "convert", "fma":
		return n * psPerCheap
	}
	c := ir.CostOf(op)
	return c.Flops * psPerCheap
}

// Workspace is the arena memory that an op's regions need.
func (c *costs) Workspace(op *ir.Op, l *lower.Lowered) int64 {
	if !buffer.IsControl(op) {
		return 0
	}
	n, err := buffer.RegionBytes(op, buffer.Options{Lowered: lower.Op, Workspace: c.Workspace})
	if err != nil {
		return 0 // the layout reports it with the op's name
	}
	return n
}
