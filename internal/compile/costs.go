package compile

import (
	"fmt"

	"reprise/codegen/cpu"
	"reprise/ir"
	"reprise/ir/kern"
	"reprise/passes/buffer"
	"reprise/passes/lower"
)

// costs estimates what an op takes on two cores of one CPU, from its shapes alone, so that plans do not
// depend on the machine that compiles. The work of each kernel is counted from what it is (kern.Work, the blocking
// of a contraction, the blocks of attention, the taps of a convolution), and the rates below turn it into time.
type costs struct {
	contracts map[string]float64 // cycles, by shape
}

func newCosts() *costs { return &costs{map[string]float64{}} }

// The machine that costs are about, and its rates, fitted to the profiles of ten builtin models at three budgets on two
// cores of a Zen 4 server (docs/rationale.md says how, reprise bench costs prints how well they do). Cycles are those
// of one core; a vector has kern.Vector lanes of 4 bytes.
const (
	costThreads = 2
	costTarget  = cpu.V4BF16 // plans are the same for every target

	gigahertz       = 3.55      // of a core at vector work
	psPerLaunch     = 1_200_000 // a barrier and a start
	psPerCacheByte  = 5         // read or written in a cache that the cores share
	psPerMemoryByte = 22        // and in memory, whatever the number of cores
	cacheBytes      = 4 << 20   // a larger buffer is in memory by the time it is read again

	cyclesPerLanes   = 0.75 // an operation on a vector
	cyclesPerDivs    = 9    // a division or a root of a vector
	cyclesPerRandoms = 30   // a random draw for a vector
	epilogueDraws    = 2.5  // as many of those is one in an epilogue, which draws for a row at a time
	cyclesPerGather  = 1    // a lane that is loaded or stored alone
	cyclesPerScalar  = 0.8  // an operation of its own
	cyclesPerStep    = 9    // a step of a kernel whose loops depend on data: a comparison of a sort
	cyclesPerScore   = 1.4  // what softmax does to one score of attention

	// A fused multiply-add of a vector, by family; that of packed contractions is in cpu.ContractCycles.
	cyclesPerAttention = 1.12
	cyclesPerGrouped   = 1.23
	cyclesPerConv      = 1.05
)

// Nanoseconds of one run.
func (c *costs) Nanoseconds(op *ir.Op, l *lower.Lowered) int64 {
	if ns := op.Attrs.Int("cost_ns"); op.Name() == "foreign" && ns >= 0 {
		return max(1, ns)
	}
	ps := 0.0
	for _, launch := range l.Launches {
		ps += c.launch(op, launch)
	}
	if len(l.Launches) == 0 { // control flow
		n := float64(ir.CostOf(op).Flops) / kern.Vector * cyclesPerLanes
		ps = psPerLaunch + max(picoseconds(n/costThreads), traffic(bytesOf(op), n))
	}
	if op.Name() == "while" {
		// The number of rounds is not known: a run counts as many.
		ps *= 16
	}
	return max(1, int64(ps/1000))
}

func picoseconds(cycles float64) float64 { return cycles * 1000 / gigahertz }

// launch is the time of a kernel in picoseconds.
func (c *costs) launch(op *ir.Op, l lower.Launch) float64 {
	switch {
	case l.Kern != nil:
		return psPerLaunch + c.loops(op, l.Kern)
	case l.Contract != nil:
		return psPerLaunch + picoseconds(c.contract(l.Contract)) + beside(l.Contract)
	case l.Attention != nil:
		return psPerLaunch + picoseconds(attentionCycles(l.Attention)/costThreads)
	case l.Conv != nil:
		return psPerLaunch + picoseconds(convCycles(l.Conv)/costThreads)
	}
	return psPerLaunch + traffic(bytesOf(op), 0) // a foreign kernel that declares no cost
}

// loops is the time of a kernel of the loop language: the longer of what the busier core computes and what both read and write.
func (c *costs) loops(op *ir.Op, k *kern.Kernel) float64 {
	w := k.Work()
	cycles := workCycles(w)
	if w.Blind {
		flops := float64(ir.CostOf(op).Flops)
		if cycles = flops * cyclesPerStep; op.Family() == "contract" {
			cycles = flops / (2 * kern.Vector) * cyclesPerGrouped
		}
	}
	share := 1.0
	if k.Tiles > 1 {
		share = float64((k.Tiles+costThreads-1)/costThreads) / float64(k.Tiles)
	}
	var bytes []int64
	for _, p := range k.Params {
		bytes = append(bytes, p.Len*int64(p.DType.Size()))
	}
	most := 0.0 // what it can touch of a buffer
	if !w.Blind {
		most = 8 * (w.Lanes + w.Gathers + w.Scalars)
	}
	return max(picoseconds(cycles*share), traffic(bytes, most))
}

// workCycles are the cycles of counted work on one core.
func workCycles(w kern.Work) float64 {
	return (w.Lanes*cyclesPerLanes+w.Divs*cyclesPerDivs+w.Randoms*cyclesPerRandoms)/kern.Vector + w.Gathers*cyclesPerGather + w.Scalars*cyclesPerScalar
}

// traffic is the time to read or write buffers, of each at most most bytes where that is not 0.
func traffic(buffers []int64, most float64) float64 {
	ps := 0.0
	for _, b := range buffers {
		n := float64(b)
		if most > 0 {
			n = min(n, most)
		}
		if b > cacheBytes {
			ps += n * psPerMemoryByte
		} else {
			ps += n * psPerCacheByte
		}
	}
	return ps
}

func bytesOf(op *ir.Op) []int64 {
	var out []int64
	for _, v := range op.Operands {
		out = append(out, v.Type.Bytes())
	}
	for _, v := range op.Results {
		out = append(out, v.Type.Bytes())
	}
	return out
}

// contract is the cycles of a contraction with what is computed on the way in and out.
func (c *costs) contract(k *kern.Contract) float64 {
	key := fmt.Sprint(k.A, k.B, k.Acc, k.Out, k.Batch, k.M, k.N, k.K, k.Epilogue != nil)
	for _, p := range []*kern.Prologue{k.ProA, k.ProB} {
		if p != nil {
			key += fmt.Sprint(" ", p.AlongK, p.Flops)
		} else {
			key += " -"
		}
	}
	cycles, ok := c.contracts[key]
	if !ok {
		var err error
		if cycles, err = cpu.ContractCycles(k, costTarget, costThreads); err != nil {
			cycles = 0 // the emitter reports it with the op's name
		}
		c.contracts[key] = cycles
	}
	if k.Epilogue != nil {
		n := k.M.Size * ((k.N.Size + kern.Vector - 1) / kern.Vector * kern.Vector)
		for _, a := range k.Batch {
			n *= a.Size
		}
		w := k.Epilogue.Work()
		w.Randoms *= epilogueDraws
		cycles += workCycles(w) * float64(n) / costThreads
	}
	return cycles
}

// beside is the time in picoseconds for what an epilogue reads and writes in memory. Half of it passes while the rest computes.
func beside(k *kern.Contract) float64 {
	ps := 0.0
	for _, p := range k.Params {
		if b := p.Len * int64(p.DType.Size()); k.Epilogue != nil && b > cacheBytes {
			ps += float64(b) * psPerMemoryByte / 2
		}
	}
	return ps
}

// attentionCycles counts blocks of 64 queries by 64 keys: two products of each forward, five backward.
func attentionCycles(a *kern.Attention) float64 {
	const block = 64
	queries, keys := (a.Tq+block-1)/block, (a.Tk+block-1)/block
	blocks := queries * keys
	if a.Causal {
		blocks -= queries * (queries - 1) / 2 // those above the diagonal, which ends in the last block
	}
	scores := float64(a.Batch * a.Heads * blocks * block * block)
	products := 2.0
	if a.Backward {
		products = 5
	}
	per := products*float64(a.Dim)/kern.Vector*cyclesPerAttention + cyclesPerScore
	if a.Dropout > 0 {
		per += cyclesPerRandoms / kern.Vector
	}
	return scores * per
}

// convCycles counts the taps that exist, in vectors of output channels.
func convCycles(c *kern.Conv) float64 {
	groups := c.Groups * c.BatchGroups
	n := float64(c.Batch * c.InChannels * groups * ((c.Channels/groups + kern.Vector - 1) / kern.Vector))
	for _, d := range c.Spatial {
		n *= float64(d.Taps())
	}
	return n * cyclesPerConv
}

// elementwise is about the time in picoseconds that computing an elementwise op's result takes wherever that is done.
func elementwise(op *ir.Op) float64 {
	switch op.Name() {
	case "constant", "broadcast", "reshape", "iota":
		return 0
	}
	return picoseconds(float64(ir.CostOf(op).Flops) / kern.Vector * cyclesPerLanes / costThreads)
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
