package compile

import (
	"context"
	"fmt"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/passes/lower"
	"reprise/runtime/exe"
)

// Launches is Compile without code: the programs, and what each of their symbols stands for. It
// serves whoever runs programs in the loop language.
func Launches(ctx context.Context, m *frontend.Model, opt Options) (*exe.Model, map[string]lower.Launch, error) {
	p, err := Plan(ctx, m, opt)
	if err != nil {
		return nil, nil, err
	}
	target, err := cpu.ParseTarget(opt.Target)
	if err != nil {
		return nil, nil, err
	}
	k := keptLaunches{}
	x, err := p.programs(m, target, k)
	if err != nil {
		return nil, nil, err
	}
	return x, k, x.Validate()
}

// keptLaunches gives every launch a symbol of its own.
type keptLaunches map[string]lower.Launch

func (k keptLaunches) Launches(l lower.Launch) ([]kernelLaunch, error) {
	s := fmt.Sprintf("k%d", len(k))
	k[s] = l
	tiles := int64(1) // of the families that are no kernels yet
	switch {
	case l.Kern != nil:
		tiles = l.Kern.Tiles
	case l.Foreign != nil:
		tiles = l.Foreign.Tiles
	}
	return []kernelLaunch{{Symbol: s, Tiles: tiles}}, nil
}
