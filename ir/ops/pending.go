package ops

import "reprise/ir"

func collectiveOps() []*ir.OpDef { return nil }
func foreignOps() []*ir.OpDef    { return nil }
