-- Which queue a run waits in for workers, how early its turn is (less is earlier), and when to look at it again (NULL: not before it changes).
ALTER TABLE run ADD COLUMN queue TEXT;
ALTER TABLE run ADD COLUMN rank INTEGER;
ALTER TABLE run ADD COLUMN ready INTEGER;
