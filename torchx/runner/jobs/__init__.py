"""Jobs as the Runner finds them: which backend a handle means, tasks of sweeps and paced sweeps as jobs."""
