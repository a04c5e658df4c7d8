"""What must hold whenever nobody writes, as SQL over the tables: asked by the simulator after every commit, and by
`clutch doctor` of the live database."""
