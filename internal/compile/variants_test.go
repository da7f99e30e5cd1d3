package compile

import (
	"context"
	"fmt"

	"reprise/frontend"
	"reprise/planner"
)

// Variants are the programs of a model in which ever more readers compute what they read, each in the least memory and
// with everything else kept; none where no reader can.
func Variants(m *frontend.Model) ([]*Mutant, error) {
	opt := Options{PlanSteps: 100}
	grouped, err := Prepare(m.Module, opt)
	if err != nil {
		return nil, err
	}
	pl := newPlanning(context.Background(), grouped, opt)
	if pl.init, err = initBytes(grouped); err != nil {
		return nil, err
	}
	vs, err := pl.chain()
	if err != nil || len(vs) == 1 {
		return nil, err
	}
	var out []*Mutant
	add := func(k int, what string, p *planned) {
		out = append(out, &Mutant{What: fmt.Sprintf("variant %d of %d, %s", k, len(vs), what), Found: (&Program{planned: p}).ProveOnce(), p: p})
	}
	for k, v := range vs {
		p, err := pl.smallestOf(v)
		if err != nil {
			return nil, err
		}
		add(k, "in the least memory", p)
		if p, err = pl.realise(v, planner.SaveAll(p.problem.Problem), 0); err != nil {
			return nil, err
		}
		add(k, "everything kept", p)
	}
	return out, nil
}
